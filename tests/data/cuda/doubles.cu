// Double precision: the compiler's library functions, and a Newton iteration.

extern "C" __global__ void functions(const double *__restrict__ x, double *__restrict__ out,
                                     int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const double value = x[i];
  double *result = out + i * 10;
  result[0] = exp(value);
  result[1] = log(fabs(value));
  result[2] = sqrt(fabs(value));
  result[3] = 1.0 / value;
  result[4] = cbrt(value);
  result[5] = tanh(value);
  result[6] = floor(value) + ceil(value * 0.5) * 1024.0;
  result[7] = rint(value) - trunc(value);
  result[8] = fma(value, value, -2.0);
  result[9] = atan2(value, 3.0);
}

extern "C" __global__ void rounded(const double *__restrict__ a, const double *__restrict__ b,
                                   double *__restrict__ out, float *__restrict__ narrow,
                                   long long *__restrict__ integers, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const double x = a[i], y = b[i];
  out[i * 4 + 0] = __dadd_rn(x, y);
  out[i * 4 + 1] = __dmul_rn(x, y);
  out[i * 4 + 2] = __ddiv_rn(x, y);
  out[i * 4 + 3] = fmin(x, y) + fmax(x, y);
  narrow[i * 2 + 0] = __double2float_rn(x);
  narrow[i * 2 + 1] = __double2float_rz(x);
  integers[i * 3 + 0] = __double2ll_rn(x);
  integers[i * 3 + 1] = __double2int_rz(x);
  integers[i * 3 + 2] = __double_as_longlong(x) ^ __double2hiint(y);
}

// The largest root of t^3 - 3 t = x by Newton's method, each thread until it stands still.
extern "C" __global__ void newton(const double *__restrict__ x, double *__restrict__ root,
                                  int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  double t = 3.0 + fabs(x[i]);
  for (int step = 0; step < 200; ++step) {
    const double next = t - (t * t * t - 3.0 * t - x[i]) / (3.0 * t * t - 3.0);
    if (fabs(next - t) <= 1e-15 * fabs(t)) break;
    t = next;
  }
  root[i] = t;
}
