// Reductions across warps and blocks.

__device__ __forceinline__ float warp_sum(float value) {
  for (int distance = 16; distance > 0; distance /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}

__device__ __forceinline__ float warp_max(float value) {
  for (int distance = 16; distance > 0; distance /= 2)
    value = fmaxf(value, __shfl_down_sync(0xffffffffu, value, distance));
  return __shfl_sync(0xffffffffu, value, 0);
}

// Softmax of each row of x [rows, columns]: one block a row, one float of dynamic shared memory
// per warp.
extern "C" __global__ void softmax(const float *__restrict__ x, float *__restrict__ y,
                                   int columns) {
  extern __shared__ float partial[];
  const float *row = x + static_cast<size_t>(blockIdx.x) * columns;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;

  float largest = -INFINITY;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) largest = fmaxf(largest, row[i]);
  largest = warp_max(largest);
  if (lane == 0) partial[warp] = largest;
  __syncthreads();
  for (int i = 0; i < warps; ++i) largest = fmaxf(largest, partial[i]);
  __syncthreads();

  float sum = 0.f;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += expf(row[i] - largest);
  sum = warp_sum(sum);
  if (lane == 0) partial[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    sum = warp_sum(lane < warps ? partial[lane] : 0.f);
    if (lane == 0) partial[0] = sum;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < columns; i += blockDim.x)
    y[static_cast<size_t>(blockIdx.x) * columns + i] = expf(row[i] - largest) / partial[0];
}

// Inclusive prefix sums of each block's integers: shuffles up within warps, then across them.
extern "C" __global__ void scan(const int *__restrict__ x, int *__restrict__ y) {
  __shared__ int totals[32];
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int value = x[index];
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, value, distance);
    if (lane >= distance) value += other;
  }
  if (lane == 31) totals[warp] = value;
  __syncthreads();
  for (int i = 0; i < warp; ++i) value += totals[i];
  y[index] = value;
}

// Keeps the positive numbers of each warp, in order, and fills up with zeros: ballot and popc.
// counts [warps]: how many; sums [warps]: of their integer parts, by redux.
extern "C" __global__ void compact(const float *__restrict__ x, float *__restrict__ y,
                                   int *__restrict__ counts, int *__restrict__ sums) {
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  const int lane = threadIdx.x % 32;
  const float value = x[index];
  const bool keep = value > 0.f;
  const unsigned kept = __ballot_sync(0xffffffffu, keep);
  const unsigned before = kept & ((1u << lane) - 1);
  const int total = __popc(kept);
  const int to = keep ? __popc(before) : total + lane - __popc(before);
  y[index - lane + to] = keep ? value : 0.f;
  const int sum = __reduce_add_sync(0xffffffffu, keep ? static_cast<int>(value) : 0);
  if (__any_sync(0xffffffffu, keep) && __all_sync(0xffffffffu, total >= 0) && lane == 31) {
    counts[index / 32] = total;
    sums[index / 32] = sum;
  } else if (lane == 31) {
    counts[index / 32] = 0;
    sums[index / 32] = 0;
  }
}
