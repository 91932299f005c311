/* Reset at 0, interrupts at 0x10, where PicoRV32 has them. */
.option norvc
.section .start, "ax"
.global _start
_start:
    la sp, stack_end
    j begin
.balign 16
interrupt_entry:
    /* Save what a function may change; the program's stack is in use at any time. */
    addi sp, sp, -64
    sw ra, 0(sp)
    sw t0, 4(sp)
    sw t1, 8(sp)
    sw t2, 12(sp)
    sw a0, 16(sp)
    sw a1, 20(sp)
    sw a2, 24(sp)
    sw a3, 28(sp)
    sw a4, 32(sp)
    sw a5, 36(sp)
    sw a6, 40(sp)
    sw a7, 44(sp)
    sw t3, 48(sp)
    sw t4, 52(sp)
    sw t5, 56(sp)
    sw t6, 60(sp)
    call interrupt
    lw ra, 0(sp)
    lw t0, 4(sp)
    lw t1, 8(sp)
    lw t2, 12(sp)
    lw a0, 16(sp)
    lw a1, 20(sp)
    lw a2, 24(sp)
    lw a3, 28(sp)
    lw a4, 32(sp)
    lw a5, 36(sp)
    lw a6, 40(sp)
    lw a7, 44(sp)
    lw t3, 48(sp)
    lw t4, 52(sp)
    lw t5, 56(sp)
    lw t6, 60(sp)
    addi sp, sp, 64
    .word 0x0400000b /* retirq */
begin:
    li t0, ~(1 << 3)
    .word 0x0602e00b /* maskirq zero, t0: all but line 3 are masked */
    call main
    li t0, 0x40000004
    sw a0, 0(t0)
end:
    j end
