// Hopper's warpgroup products (wgmma), and the barriers and copies that feed them.
#define HOPPER (__CUDA_ARCH__ == 900 && TERMS == 1)

#if HOPPER
__device__ __forceinline__ void wait_barrier(u32 barrier, u32 parity) {
    asm volatile(
        "{\n\t.reg .pred done;\n"
        "again:\n\t"
        "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n\t"
        "@done bra.uni ready;\n\t"
        "bra.uni again;\n"
        "ready:\n\t}"
        ::"r"(barrier), "r"(parity) : "memory");
}
__device__ __forceinline__ void arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void bulk_copy(u32 to, const void* from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
                 "r"(bytes), "r"(barrier)
                 : "memory");
}
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void wait_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// d[64 rows, N] += a[64, 16] · b[16, N], or = if not `add`; a thread's d: as mma's, tile by tile of eight columns.
template <int N, bool ADD>
__device__ __forceinline__ void multiply_group(float (&d)[N / 2], const u32* a, u64 b);
#define D4(how, i) how(d[i]), how(d[i + 1]), how(d[i + 2]), how(d[i + 3])
#define D16(how, i) D4(how, i), D4(how, i + 4), D4(how, i + 8), D4(how, i + 12)
#define D32(how) D16(how, 0)
#define D64(how) D32(how), D16(how, 16)
#define D96(how) D64(how), D16(how, 32)
#define D128(how) D96(how), D16(how, 48)
#define D192(how) D128(how), D16(how, 64), D16(how, 80)
#define D_OF_32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define D_OF_64 D_OF_32 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define D_OF_96 D_OF_64 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define D_OF_128 D_OF_96 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define D_OF_160 D_OF_128 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define D_OF_192 D_OF_160 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define MULTIPLY_GROUP_OR(TEMPLATE, NAME, N, TYPES, ADD, HOW, A, INPUTS, ...)                                          \
    template <>                                                                                                      \
    __device__ __forceinline__ void NAME<TEMPLATE>(float (&d)[N / 2], A a, u64 b) {                                  \
        asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.u32 add, " #ADD ", 0;\n\twgmma.mma_async.sync.aligned.m64n" #N \
                     "k16.f32." TYPES " {" D_OF_##N "}, " INPUTS ";\n\t}"                                            \
                     : D##N(HOW)                                                                                     \
                     : __VA_ARGS__, "l"(b));                                                                         \
    }
#define COMMA ,
#define MULTIPLY_GROUP(N, INPUTS)                                                                                           \
    MULTIPLY_GROUP_OR(N COMMA false, multiply_group, N, "bf16.bf16", 0, "=f", const u32*, INPUTS ", add, 1, 1, 0",           \
                      "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]))                                                            \
    MULTIPLY_GROUP_OR(N COMMA true, multiply_group, N, "bf16.bf16", 1, "+f", const u32*, INPUTS ", add, 1, 1, 0",            \
                      "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]))
MULTIPLY_GROUP(32, "{%16,%17,%18,%19}, %20")
MULTIPLY_GROUP(64, "{%32,%33,%34,%35}, %36")
MULTIPLY_GROUP(96, "{%48,%49,%50,%51}, %52")
MULTIPLY_GROUP(128, "{%64,%65,%66,%67}, %68")
MULTIPLY_GROUP(192, "{%96,%97,%98,%99}, %100")

// The same with f16 operands, and a in shared memory.
template <int N, bool ADD>
__device__ __forceinline__ void multiply_group_f16(float (&d)[N / 2], u64 a, u64 b);
MULTIPLY_GROUP_OR(128 COMMA false, multiply_group_f16, 128, "f16.f16", 0, "=f", u64, "%64, %65, add, 1, 1, 0, 0", "l"(a))
MULTIPLY_GROUP_OR(128 COMMA true, multiply_group_f16, 128, "f16.f16", 1, "+f", u64, "%64, %65, add, 1, 1, 0, 0", "l"(a))
// And a in registers.
template <int N, bool ADD>
__device__ __forceinline__ void multiply_group_f16(float (&d)[N / 2], const u32* a, u64 b);
MULTIPLY_GROUP_OR(128 COMMA true, multiply_group_f16, 128, "f16.f16", 1, "+f", const u32*,
                  "{%64,%65,%66,%67}, %68, add, 1, 1, 0", "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]))

#define ROW_PAIR(i) ((i) % 4 / 2)  // which of a thread's two rows value i of a sum belongs to

// Results of wgmma are there after a wait only, which the compiler doesn't know.
template <int COUNT>
__device__ __forceinline__ void settle(float (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(d[i])::"memory");
}

// An operand in shared memory: blocks of eight rows of A or columns of B `APART` bytes apart, 128-byte swizzle.
template <int APART>
__device__ __forceinline__ u64 operand(u32 address) {
    return (u64)(address >> 4 & 0x3fff) | (u64)(APART >> 4) << 32 | 1ull << 62;
}
#endif
