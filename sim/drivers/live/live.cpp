// A design that Yosys wrote as C++, for a page that runs it: a list of its ports, registers and
// memories, and steps. The compiler is given DESIGN, the file, and TOP, the design's class.
#include DESIGN
#include <cxxrtl/capi/cxxrtl_capi.cc>

#include <string>
#include <utility>
#include <vector>

#define EXPORT(name) __attribute__((export_name(#name)))

namespace {

using Item = cxxrtl::debug_item;

cxxrtl_design::TOP top;
std::vector<std::pair<std::string, Item>> listed;

// Wires between them are left out, and so are the registers that Yosys adds before a memory.
bool shown(const std::string &name, const Item &item) {
  const bool kept = item.flags & (Item::INPUT | Item::OUTPUT | Item::DRIVEN_SYNC);
  const bool state = item.type == Item::MEMORY || (item.type != Item::ALIAS && kept);
  return state && name.find('$') == std::string::npos;
}

}  // namespace

extern "C" {

EXPORT(list) int list() {
  cxxrtl::debug_items items;
  top.debug_info(&items, nullptr, "");
  for (auto &[name, parts] : items.table)
    for (auto &part : parts)
      if (shown(name, part)) listed.push_back({name, part});
  return listed.size();
}

EXPORT(name) const char *name(int i) { return listed[i].first.c_str(); }
EXPORT(width) int width(int i) { return listed[i].second.width; }
EXPORT(depth) int depth(int i) { return listed[i].second.depth; }
EXPORT(port) int port(int i) { return (listed[i].second.flags & (Item::INPUT | Item::OUTPUT)) != 0; }
EXPORT(current) uint32_t *current(int i) { return listed[i].second.curr; }
EXPORT(next) uint32_t *next(int i) { return listed[i].second.next; }
EXPORT(step) void step() { top.step(); }
}
