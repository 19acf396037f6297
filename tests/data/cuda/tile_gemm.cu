// C = A B with f16 operands and f32 accumulation: 64 x 64 tiles of C, K in steps of 32, two stages
// of cp.async, ldmatrix and mma.sync. A [m, k] and B [k, n] by rows; k and n are multiples of 8,
// and rows and columns outside the matrices are filled with zeros.
#include <cuda_fp16.h>

constexpr int kTileM = 64, kTileN = 64, kTileK = 32, kStages = 2;
constexpr int kPitchA = kTileK + 8, kPitchB = kTileN + 8;  // in elements: no bank conflicts

__device__ __forceinline__ void copy_16_bytes(const half *to, const half *from, bool inside) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  const int size = inside ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(size)
               : "memory");
}

__device__ __forceinline__ void load_tiles(half *tile_a, half *tile_b, const half *a,
                                           const half *b, int m, int n, int k, int row, int column,
                                           int step) {
#pragma unroll
  for (int i = threadIdx.x; i < kTileM * kTileK / 8; i += 128) {
    const int r = i / (kTileK / 8), c = i % (kTileK / 8) * 8;
    const bool inside = row + r < m && step + c < k;
    copy_16_bytes(tile_a + r * kPitchA + c,
                  inside ? a + static_cast<size_t>(row + r) * k + step + c : a, inside);
  }
#pragma unroll
  for (int i = threadIdx.x; i < kTileK * kTileN / 8; i += 128) {
    const int r = i / (kTileN / 8), c = i % (kTileN / 8) * 8;
    const bool inside = step + r < k && column + c < n;
    copy_16_bytes(tile_b + r * kPitchB + c,
                  inside ? b + static_cast<size_t>(step + r) * n + column + c : b, inside);
  }
}

extern "C" __global__ void __launch_bounds__(128)
    tile_gemm(const half *__restrict__ a, const half *__restrict__ b, float *__restrict__ c, int m,
              int n, int k) {
  __shared__ __align__(16) half tiles_a[kStages][kTileM * kPitchA];
  __shared__ __align__(16) half tiles_b[kStages][kTileK * kPitchB];
  const int row = blockIdx.y * kTileM, column = blockIdx.x * kTileN;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_row = warp / 2 * 32, warp_column = warp % 2 * 32;
  float sums[2][4][4] = {};

  load_tiles(tiles_a[0], tiles_b[0], a, b, m, n, k, row, column, 0);
  asm volatile("cp.async.commit_group;" ::: "memory");

  const int steps = (k + kTileK - 1) / kTileK;
  for (int step = 0; step < steps; ++step) {
    if (step + 1 < steps) {
      const int next = (step + 1) % kStages;
      load_tiles(tiles_a[next], tiles_b[next], a, b, m, n, k, row, column, (step + 1) * kTileK);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncthreads();

    const half *tile_a = tiles_a[step % kStages], *tile_b = tiles_b[step % kStages];
#pragma unroll
    for (int inner = 0; inner < kTileK; inner += 16) {
      unsigned fragment_a[2][4], fragment_b[4][2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const half *source =
            tile_a + (warp_row + i * 16 + lane % 16) * kPitchA + inner + lane / 16 * 8;
        const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(source));
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(fragment_a[i][0]), "=r"(fragment_a[i][1]), "=r"(fragment_a[i][2]),
                       "=r"(fragment_a[i][3])
                     : "r"(address)
                     : "memory");
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const half *source = tile_b + (inner + lane % 16) * kPitchB + warp_column + j * 8;
        const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(source));
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                     : "=r"(fragment_b[j][0]), "=r"(fragment_b[j][1])
                     : "r"(address)
                     : "memory");
      }
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          asm volatile(
              "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
              "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
              : "+f"(sums[i][j][0]), "+f"(sums[i][j][1]), "+f"(sums[i][j][2]), "+f"(sums[i][j][3])
              : "r"(fragment_a[i][0]), "r"(fragment_a[i][1]), "r"(fragment_a[i][2]),
                "r"(fragment_a[i][3]), "r"(fragment_b[j][0]), "r"(fragment_b[j][1]));
    }
    __syncthreads();
  }

#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int r = row + warp_row + i * 16 + lane / 4 + e / 2 * 8;
        const int col = column + warp_column + j * 8 + lane % 4 * 2 + e % 2;
        if (r < m && col < n) c[static_cast<size_t>(r) * n + col] = sums[i][j][e];
      }
}
