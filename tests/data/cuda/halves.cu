// f16 and bf16 arithmetic, comparison and conversion.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void half_math(const half2 *__restrict__ a, const half2 *__restrict__ b,
                                     const half2 *__restrict__ c, half2 *__restrict__ out,
                                     int *__restrict__ flags, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const half2 x = a[i], y = b[i], z = c[i];
  half2 *result = out + i * 8;
  result[0] = __hadd2_rn(x, y);
  result[1] = __hsub2_rn(x, y);
  result[2] = __hmul2_rn(x, y);
  result[3] = __hfma2(x, y, z);
  result[4] = __hmin2(x, y);
  result[5] = __hmax2_nan(x, y);
  result[6] = __hneg2(__habs2(x));
  result[7] = __halves2half2(__hfma(__low2half(x), __high2half(y), __low2half(z)),
                             __hadd_rn(__high2half(x), __low2half(y)));
  flags[i] = __hlt(__low2half(x), __low2half(y)) | __hgeu(__low2half(x), __low2half(y)) << 1 |
             __heq(__high2half(x), __high2half(y)) << 2 | __hisnan(__high2half(x)) << 3 |
             __hbeq2(x, y) << 4;
}

extern "C" __global__ void bf16_math(const __nv_bfloat162 *__restrict__ a,
                                     const __nv_bfloat162 *__restrict__ b,
                                     const __nv_bfloat162 *__restrict__ c,
                                     __nv_bfloat162 *__restrict__ out, int *__restrict__ flags,
                                     int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const __nv_bfloat162 x = a[i], y = b[i], z = c[i];
  __nv_bfloat162 *result = out + i * 6;
  result[0] = __hadd2_rn(x, y);
  result[1] = __hmul2_rn(x, y);
  result[2] = __hfma2(x, y, z);
  result[3] = __hmin2(x, y);
  result[4] = __hmax2_nan(x, y);
  result[5] = __hneg2(__habs2(x));
  flags[i] = __hlt(__low2bfloat16(x), __low2bfloat16(y)) |
             __hgeu(__low2bfloat16(x), __low2bfloat16(y)) << 1 |
             __heq(__high2bfloat16(x), __high2bfloat16(y)) << 2;
}

extern "C" __global__ void convert(const float *__restrict__ x, half *__restrict__ halves,
                                   __nv_bfloat16 *__restrict__ brains, int *__restrict__ integers,
                                   float *__restrict__ back, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const float value = x[i];
  const half nearest = __float2half_rn(value);
  const __nv_bfloat16 brain = __float2bfloat16_rn(value);
  halves[i * 4 + 0] = nearest;
  halves[i * 4 + 1] = __float2half_rz(value);
  halves[i * 4 + 2] = __float2half_ru(value);
  halves[i * 4 + 3] = __int2half_rn(__float2int_rz(value));
  brains[i * 2 + 0] = brain;
  brains[i * 2 + 1] = __float2bfloat16_rz(value);
  integers[i * 6 + 0] = __float2int_rn(value);
  integers[i * 6 + 1] = __float2int_rd(value);
  integers[i * 6 + 2] = __float2uint_ru(value);
  integers[i * 6 + 3] = __half2int_rz(nearest);
  integers[i * 6 + 4] = __half2short_rn(nearest);
  integers[i * 6 + 5] = static_cast<int>(__float2ll_rn(value) >> 8);
  const float2 both = __half22float2(__floats2half2_rn(value, -value));
  const float2 brains2 = __bfloat1622float2(__floats2bfloat162_rn(value, 2.f * value));
  back[i * 6 + 0] = __half2float(nearest);
  back[i * 6 + 1] = __bfloat162float(brain);
  back[i * 6 + 2] = both.x;
  back[i * 6 + 3] = both.y;
  back[i * 6 + 4] = brains2.x;
  back[i * 6 + 5] = brains2.y;
}
