// Device functions, variables outside kernels, local memory and wide integers.

struct Pair { double x; float y; int n; };
struct Table { long long offset; int steps[6]; };

__constant__ float coefficients[5] = {1.0f, -0.5f, 0.25f, 3.0f, -2.0f};
__constant__ short constant_step = -3;
__device__ int counter = 7;
__device__ unsigned long long bits[2] = {0x0123456789abcdefull, 1};
__device__ int *counters[2] = {nullptr, &counter};

extern "C" __global__ void trigonometry_f32(const float *x, float *s, float *c, float *t, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  s[i] = sinf(x[i]);
  c[i] = cosf(x[i]);
  t[i] = tanf(x[i]);
}

extern "C" __global__ void trigonometry_f64(const double *x, double *s, double *c, double *t, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  s[i] = sin(x[i]);
  c[i] = cos(x[i]);
  t[i] = tan(x[i]);
}

// Horner's rule with coefficients that each thread turns round by its own number.
extern "C" __global__ void polynomial(const float *x, const int *turn, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float turned[5];
  for (int k = 0; k < 5; ++k) turned[(k + turn[i]) % 5] = coefficients[k];
  float sum = 0;
  for (int k = 0; k < 5; ++k) sum = sum * x[i] + turned[k];
  y[i] = sum * constant_step;
}

__noinline__ __device__ Pair grow(Pair p, int steps) {
  for (int k = 0; k < steps; ++k) {
    if (p.x > 100) return p;
    p.x = p.x * 2 + p.y;
    p.n += k;
  }
  p.n = -p.n;
  return p;
}

__noinline__ __device__ double grown(double x, int steps) {
  Pair p = grow(Pair{x, 0.5f, steps}, steps);
  return p.n < 0 ? p.x : grow(p, 3).x - p.n;
}

extern "C" __global__ void calls(const double *x, double *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  y[i] = i % 3 == 0 ? grown(x[i], i % 7) : grow(Pair{x[i], 1.0f, i}, 5).x;
}

extern "C" __global__ void wide(const unsigned long long *a, const unsigned long long *b,
                                unsigned long long *sum, unsigned long long *product, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned __int128 x = ((unsigned __int128)a[2 * i + 1] << 64) | a[2 * i];
  unsigned __int128 y = ((unsigned __int128)b[2 * i + 1] << 64) | b[2 * i];
  unsigned __int128 s = x - y + bits[1], p = x * y + bits[0];
  sum[2 * i] = (unsigned long long)s;
  sum[2 * i + 1] = (unsigned long long)(s >> 64);
  product[2 * i] = (unsigned long long)p;
  product[2 * i + 1] = (unsigned long long)(p >> 64);
}

extern "C" __global__ void count(int *before, Table table) {
  int i = threadIdx.x;
  before[i] = table.steps[i % 6] + (int)table.offset;
  atomicAdd(counters[1], table.steps[i % 6]);
}
