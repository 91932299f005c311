// Interface of a compiled design to the stream harness. sim/drivers/harness/verilated.py writes one
// table for each design; harness.cpp, which is compiled once for all designs, reads it.
#pragma once
#include <cstdint>

struct Port {  // a port of a Verilated model: its bits, little end first
    void* bits;
    int64_t bytes;  // 1, 2, 4, 8, or any multiple of 4
};

struct DesignTable {
    // Makes a model and fills its ports: clk and rst if clocked, then payload, valid and ready of
    // each input stream, the same of each output stream, then the constants and what is observed.
    void* (*create)(Port* ports);
    void (*evaluate)(void* model);
    void (*destroy)(void* model);
    int64_t clocked, sources, sinks, constants, observed;
    const int64_t* words;  // of 32 bits, of each input stream's payload, then of each output's
};
