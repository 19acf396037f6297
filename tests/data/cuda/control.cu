// Control flow in which the threads of a warp part and meet again.

// Steps until the Collatz sequence of x[i] comes to 1, or -1 if it takes more than `limit`; 0 is
// left out at once.
extern "C" __global__ void collatz(const unsigned *__restrict__ x, int *__restrict__ steps,
                                   int limit, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  unsigned long long value = x[i];
  if (value == 0) {
    steps[i] = -2;
    return;
  }
  int taken = 0;
  while (value != 1) {
    if (taken == limit) {
      steps[i] = -1;
      return;
    }
    value = value % 2 ? 3 * value + 1 : value / 2;
    ++taken;
  }
  steps[i] = taken;
}

// Nested loops with break and continue: counts the primes below x[i] that do not divide it.
extern "C" __global__ void primes(const int *__restrict__ x, int *__restrict__ found, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  int total = 0;
  for (int candidate = 2; candidate < x[i]; ++candidate) {
    bool prime = true;
    for (int divisor = 2; divisor * divisor <= candidate; ++divisor) {
      if (candidate % divisor == 0) {
        prime = false;
        break;
      }
    }
    if (!prime || x[i] % candidate == 0) continue;
    ++total;
  }
  found[i] = total;
}

// A small machine: each thread runs its own program of 8 bytes, a switch with ten cases a step.
extern "C" __global__ void interpret(const unsigned char *__restrict__ programs,
                                     int *__restrict__ results, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  int a = i, b = 1;
  for (int step = 0; step < 8; ++step) {
    const unsigned char code = programs[i * 8 + step];
    switch (code % 11) {
      case 0: a += b; break;
      case 1: a -= 3 * b; break;
      case 2: a ^= b << 2; break;
      case 3: b = a & 0xff; break;
      case 4: b += step; break;
      case 5: a = -a; break;
      case 6:
        if (a < b) a = b + 1;
        else b = a - 1;
        break;
      case 7: a = a * 31 + 7; break;
      case 8: b = max(a, b); break;
      case 9: results[i] = a * 2 + b; return;
      default: break;
    }
  }
  results[i] = a + b;
}

// Sorts each block's keys in shared memory (bitonic): a barrier after every exchange.
extern "C" __global__ void sort_block(int *keys) {
  extern __shared__ int shared[];
  const int t = threadIdx.x;
  shared[t] = keys[blockIdx.x * blockDim.x + t];
  __syncthreads();
  for (int size = 2; size <= blockDim.x; size *= 2) {
    for (int distance = size / 2; distance > 0; distance /= 2) {
      const int other = t ^ distance;
      if (other > t) {
        const bool ascending = (t & size) == 0;
        const int mine = shared[t], theirs = shared[other];
        if ((mine > theirs) == ascending) {
          shared[t] = theirs;
          shared[other] = mine;
        }
      }
      __syncthreads();
    }
  }
  keys[blockIdx.x * blockDim.x + t] = shared[t];
}
