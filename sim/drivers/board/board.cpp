// A board on its desk: the Verilated top with a serial line that ends in a pseudo-terminal. The
// serial line is modelled from its definition: a start bit, eight data bits, lowest first, a stop bit.
#include "Model.h"
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

namespace {

volatile sig_atomic_t reset_cycles = 4;  // from power-up

void press_reset(int) { reset_cycles = 4; }  // by SIGUSR1, as by the board's button

const int64_t read_every = 64;    // cycles
const int64_t idle_after = 4000;  // cycles without a byte either way; then wait for one

class Sender {  // drives the board's rx
public:
    std::deque<uint8_t> bytes;
    explicit Sender(int divisor) : divisor(divisor) {}
    bool busy() const { return bits || !bytes.empty(); }
    int step() {
        if (left) {
            left--;
        } else if (bits) {
            frame >>= 1, bits--;
            left = divisor - 1;
        }
        if (!bits && !bytes.empty()) {
            frame = 0x200u | uint32_t(bytes.front()) << 1;
            bytes.pop_front();
            bits = 10, left = divisor - 1;
        }
        return bits ? frame & 1 : 1;
    }

private:
    int divisor, left = 0, bits = 0;
    uint32_t frame = 0;
};

class Listener {  // samples the board's tx in the middle of each bit
public:
    explicit Listener(int divisor) : divisor(divisor) {}
    bool busy() const { return state; }
    bool step(int line, uint8_t* byte) {
        if (!state) {
            if (!line) state = 1, timer = divisor / 2;
            return false;
        }
        if (--timer > 0) return false;
        timer = divisor;
        if (state == 1) return state = line ? 0 : 2, false;
        if (state < 10) {
            value = value >> 1 | line << 7;
            return state++, false;
        }
        state = 0;
        *byte = value;
        return line;
    }

private:
    int divisor, state = 0, timer = 0;
    uint8_t value = 0;
};

}  // namespace

int main(int, char** arguments) {
    const int terminal = atoi(arguments[1]), divisor = atoi(arguments[2]);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGUSR1, press_reset);
    fcntl(terminal, F_SETFL, O_NONBLOCK);
    VerilatedContext context;
    Model model{&context};
    Sender sender(divisor);
    Listener listener(divisor);
    model.rx = 1;
    int64_t quiet = 0;
    for (int64_t cycle = 0;; cycle++) {
        model.rst = reset_cycles > 0;
        if (reset_cycles > 0) reset_cycles = reset_cycles - 1, quiet = 0;
        model.rx = sender.step();
        model.clk = 0, model.eval();
        model.clk = 1, model.eval();
        uint8_t byte;
        if (listener.step(model.tx, &byte)) {
            while (write(terminal, &byte, 1) < 0 && errno == EAGAIN) {
                pollfd room{terminal, POLLOUT, 0};
                poll(&room, 1, -1);
            }
        }
        quiet = sender.busy() || listener.busy() ? 0 : quiet + 1;
        const bool asleep = quiet >= idle_after;
        if (asleep || cycle % read_every == 0) {
            pollfd arrives{terminal, POLLIN, 0};
            if (asleep) poll(&arrives, 1, -1);
            uint8_t data[4096];
            const ssize_t count = read(terminal, data, sizeof data);
            if (count > 0) sender.bytes.insert(sender.bytes.end(), data, data + count);
            if (count > 0) quiet = 0;
            if (count < 0 && errno != EAGAIN && asleep) usleep(1000);  // nobody has opened it
        }
    }
}
