// What sm_90 adds: bf16 arithmetic and atomics, vector reductions, f64 matrix products.
#include <cuda_bf16.h>

extern "C" __global__ void bf16_native(const __nv_bfloat162 *__restrict__ a,
                                       const __nv_bfloat162 *__restrict__ b,
                                       __nv_bfloat162 *__restrict__ out, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  out[i * 3 + 0] = __hadd2_rn(a[i], b[i]);
  out[i * 3 + 1] = __hsub2_rn(a[i], b[i]);
  out[i * 3 + 2] = __hmul2_rn(a[i], b[i]);
}

extern "C" __global__ void scatter_add_bf16x2_native(const __nv_bfloat162 *__restrict__ x,
                                                     const int *__restrict__ index,
                                                     __nv_bfloat162 *sums, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) atomicAdd(sums + index[i], x[i]);
}

extern "C" __global__ void scatter_add_f32x4(const float4 *__restrict__ x,
                                             const int *__restrict__ index, float4 *sums,
                                             int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) atomicAdd(sums + index[i], x[i]);
}

// One warp: D [16, 8] = A [16, 16] B [16, 8], all f64, by rows.
extern "C" __global__ void matrix_f64(const double *__restrict__ a, const double *__restrict__ b,
                                      double *__restrict__ d) {
  const int group = threadIdx.x / 4, member = threadIdx.x % 4;
  double fa[8], fb[4], fd[4] = {};
  for (int i = 0; i < 8; ++i) fa[i] = a[(group + i % 2 * 8) * 16 + i / 2 * 4 + member];
  for (int i = 0; i < 4; ++i) fb[i] = b[(member + i * 4) * 8 + group];
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, "
      "{%4, %5, %6, %7, %8, %9, %10, %11}, {%12, %13, %14, %15}, {%0, %1, %2, %3};"
      : "+d"(fd[0]), "+d"(fd[1]), "+d"(fd[2]), "+d"(fd[3])
      : "d"(fa[0]), "d"(fa[1]), "d"(fa[2]), "d"(fa[3]), "d"(fa[4]), "d"(fa[5]), "d"(fa[6]),
        "d"(fa[7]), "d"(fb[0]), "d"(fb[1]), "d"(fb[2]), "d"(fb[3]));
  for (int i = 0; i < 4; ++i) d[(group + i / 2 * 8) * 8 + member * 2 + i % 2] = fd[i];
}
