// Atomic updates of global and shared memory, by instruction and by compare-and-swap.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void scatter_add_f32(const float *__restrict__ x,
                                           const int *__restrict__ index, float *sums, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) atomicAdd(sums + index[i], x[i]);
}

extern "C" __global__ void scatter_add_f16x2(const half2 *__restrict__ x,
                                             const int *__restrict__ index, half2 *sums,
                                             int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) atomicAdd(sums + index[i], x[i]);
}

// sm_80 has no bf16 atomics: the compiler's own loop of compare-and-swap.
extern "C" __global__ void scatter_add_bf16x2(const __nv_bfloat162 *__restrict__ x,
                                              const int *__restrict__ index, __nv_bfloat162 *sums,
                                              int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) atomicAdd(sums + index[i], x[i]);
}

// The largest float and, in `winner`, the thread that brought it last: a loop of 64-bit CAS.
extern "C" __global__ void scatter_max(const float *__restrict__ x, const int *__restrict__ index,
                                       unsigned long long *best, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  unsigned long long *place = best + index[i];
  unsigned long long seen = *static_cast<volatile unsigned long long *>(place);
  while (__uint_as_float(static_cast<unsigned>(seen >> 32)) < x[i]) {
    const unsigned long long mine =
        static_cast<unsigned long long>(__float_as_uint(x[i])) << 32 | static_cast<unsigned>(i);
    const unsigned long long found = atomicCAS(place, seen, mine);
    if (found == seen) break;
    seen = found;
  }
}

// A histogram in shared memory, then one atomic addition of each block; and the integers' limits.
extern "C" __global__ void histogram(const int *__restrict__ x, unsigned *counts, int *low,
                                     int *high, unsigned *bits, unsigned long long *total,
                                     int count) {
  __shared__ unsigned bins[64];
  for (int i = threadIdx.x; i < 64; i += blockDim.x) bins[i] = 0;
  __syncthreads();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) {
    const int value = x[i];
    atomicAdd(bins + (value & 63), 1u);
    atomicMin(low, value);
    atomicMax(high, value);
    atomicOr(bits, 1u << (value & 31));
    atomicAdd(total, static_cast<unsigned long long>(static_cast<long long>(value)));
  }
  __syncthreads();
  for (int j = threadIdx.x; j < 64; j += blockDim.x) atomicAdd(counts + j, bins[j]);
}

extern "C" __global__ void scatter_add_f64(const double *__restrict__ x,
                                           const int *__restrict__ index, double *sums,
                                           int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) atomicAdd(sums + index[i], x[i]);
}
