/* Runs steps of VEDA's core, each a run of the device, and compares what it returns, bit for bit. */
#include "steps.h"

static volatile uint32_t *const device = (volatile uint32_t *)0x80000000;
static volatile uint32_t *const console = (volatile uint32_t *)0x40000000;
static volatile unsigned interrupts;

#define BUFFER(name, channel, count) \
    static uint32_t name[count][channel##_WORDS] __attribute__((aligned(channel##_BYTES)))

BUFFER(command, VEDA_CORE_INPUT_COMMAND, 1);
BUFFER(kv, VEDA_CORE_INPUT_KV, KV_BEATS);
BUFFER(q, VEDA_CORE_INPUT_Q, Q_BEATS);
BUFFER(o, VEDA_CORE_OUTPUT_O, O_BEATS);
BUFFER(report, VEDA_CORE_OUTPUT_REPORT, 1);
BUFFER(memory, VEDA_CORE_MEMORY, MEMORY_ROWS);

/* Called by start.S. The line is high until the causes are cleared. */
void interrupt(void)
{
    uint32_t causes = veda_core_read(device, VEDA_CORE_INTERRUPT_STATUS);
    veda_core_write(device, VEDA_CORE_INTERRUPT_STATUS, causes);
    interrupts++;
}

static void print(const char *text)
{
    while (*text)
        *console = (uint32_t)*text++;
}

static void print_number(unsigned number)
{
    char digits[11], *first = digits + 10;
    *first = 0;
    do
        *--first = (char)('0' + number % 10);
    while (number /= 10);
    print(first);
}

static uint32_t address(const void *buffer)
{
    return (uint32_t)(uintptr_t)buffer;
}

/* Number of words in which two arrays differ. */
static unsigned differ(const uint32_t *a, const uint32_t *b, unsigned words)
{
    unsigned count = 0;
    for (unsigned n = 0; n < words; n++)
        count += a[n] != b[n];
    return count;
}

static void run(unsigned step)
{
    unsigned before = interrupts;
    veda_core_input_command_pack(command[0], &commands[step][0]);
    for (unsigned n = 0; n < KV_BEATS; n++)
        veda_core_input_kv_pack(kv[n], &kvs[step][n]);
    for (unsigned n = 0; n < Q_BEATS; n++)
        veda_core_input_q_pack(q[n], &queries[step][n]);
    veda_core_write64(device, VEDA_CORE_INPUT_COMMAND_BASE, address(command));
    veda_core_write(device, VEDA_CORE_INPUT_COMMAND_BEATS, 1);
    veda_core_write64(device, VEDA_CORE_INPUT_KV_BASE, address(kv));
    veda_core_write(device, VEDA_CORE_INPUT_KV_BEATS, KV_BEATS);
    veda_core_write64(device, VEDA_CORE_INPUT_Q_BASE, address(q));
    veda_core_write(device, VEDA_CORE_INPUT_Q_BEATS, Q_BEATS);
    veda_core_write64(device, VEDA_CORE_OUTPUT_O_BASE, address(o));
    veda_core_write(device, VEDA_CORE_OUTPUT_O_BEATS, O_BEATS);
    veda_core_write64(device, VEDA_CORE_OUTPUT_REPORT_BASE, address(report));
    veda_core_write(device, VEDA_CORE_OUTPUT_REPORT_BEATS, 1);
    veda_core_write64(device, VEDA_CORE_MEMORY_BASE, address(memory));
    veda_core_start(device);
    while (interrupts == before)
        ;
}

/* Number of words in which a step's results differ from the expected ones. */
static unsigned compare(unsigned step)
{
    uint32_t expected[VEDA_CORE_OUTPUT_O_WORDS], reported[VEDA_CORE_OUTPUT_REPORT_WORDS];
    unsigned count = 0;
    for (unsigned n = 0; n < O_BEATS; n++) {
        veda_core_output_o_pack(expected, &outputs[step][n]);
        count += differ(expected, o[n], VEDA_CORE_OUTPUT_O_WORDS);
    }
    veda_core_output_report_pack(reported, &reports[step][0]);
    return count + differ(reported, report[0], VEDA_CORE_OUTPUT_REPORT_WORDS);
}

int main(void)
{
    unsigned wrong = 0;
    if (!veda_core_present(device)) {
        print("no such device\n");
        return 1;
    }
    veda_core_write(device, VEDA_CORE_INTERRUPT_MASK,
        VEDA_CORE_INTERRUPT_MASK_DONE | VEDA_CORE_INTERRUPT_MASK_ERROR);
    veda_core_write(device, VEDA_CORE_INTERRUPT_ENABLE, 1);
    for (unsigned step = 0; step < STEPS; step++) {
        run(step);
        unsigned error = veda_core_error(device), words = compare(step);
        print("step ");
        print_number(step);
        print(": ");
        print_number((unsigned)veda_core_read64(device, VEDA_CORE_CYCLES));
        print(" cycles, error ");
        print_number(error);
        print(", ");
        print_number(words);
        print(" words differ\n");
        wrong += words + error;
    }
    wrong += interrupts != STEPS;
    print(wrong ? "different\n" : "equal\n");
    return (int)wrong;
}
