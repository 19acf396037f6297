// Division, remainders, bit manipulation and 64-bit indices.

extern "C" __global__ void divide(const int *__restrict__ a, const int *__restrict__ b,
                                  const long long *__restrict__ p,
                                  const long long *__restrict__ q, int *out32, long long *out64,
                                  int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const int x = a[i], y = b[i];
  const unsigned ux = x, uy = y;
  out32[i * 8 + 0] = x / y;
  out32[i * 8 + 1] = x % y;
  out32[i * 8 + 2] = ux / uy;
  out32[i * 8 + 3] = ux % uy;
  out32[i * 8 + 4] = x / 7;
  out32[i * 8 + 5] = x % 10;
  out32[i * 8 + 6] = ux / 641u;
  out32[i * 8 + 7] = x / 16;
  const long long v = p[i], w = q[i];
  const unsigned long long uv = v, uw = w;
  out64[i * 8 + 0] = v / w;
  out64[i * 8 + 1] = v % w;
  out64[i * 8 + 2] = uv / uw;
  out64[i * 8 + 3] = uv % uw;
  out64[i * 8 + 4] = v / 1000000007ll;
  out64[i * 8 + 5] = uv % 97ull;
  out64[i * 8 + 6] = __umul64hi(uv, uw);
  out64[i * 8 + 7] = __mul64hi(v, w);
}

extern "C" __global__ void bits(const unsigned *__restrict__ a, const unsigned *__restrict__ b,
                                const unsigned long long *__restrict__ p, unsigned *out,
                                int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const unsigned x = a[i], y = b[i];
  unsigned *result = out + i * 16;
  result[0] = __brev(x);
  result[1] = __clz(x);
  result[2] = __popc(x);
  result[3] = __ffs(x);
  result[4] = __popcll(p[i]);
  result[5] = __clzll(p[i]);
  result[6] = __byte_perm(x, y, 0x6152);
  result[7] = __funnelshift_l(x, y, y & 31);
  result[8] = __funnelshift_rc(x, y, y & 63);
  result[9] = (x & y) ^ (~x | 0x5a5a5a5au);
  result[10] = x << (y & 31) | x >> (32 - (y & 31) & 31);
  result[11] = static_cast<int>(x) >> (y & 31);
  result[12] = __sad(x, y, 17);
  result[13] = __umulhi(x, y);
  result[14] = __mulhi(static_cast<int>(x), static_cast<int>(y));
  result[15] = static_cast<unsigned char>(x) + static_cast<signed char>(y) +
               static_cast<short>(x >> 8) * static_cast<unsigned short>(y >> 8);
}

// Sums of x[(stride * i) mod count] with an index that passes 2^32.
extern "C" __global__ void wide_index(const double *__restrict__ x, double *__restrict__ y,
                                      long long stride, long long count) {
  const long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  if (i >= count) return;
  double sum = 0;
  for (long long step = 0; step < 4; ++step) {
    const long long flat = (i + step * 3000000000ll) * stride;
    sum += x[flat % count] * static_cast<double>(step + 1);
  }
  y[i] = sum;
}
