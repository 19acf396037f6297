// Others' kernels, whose sources lie elsewhere, as functions of pointers and sizes.
//
// Each source is included in a namespace of its own: they give the same names to other things.
// What they include of PyTorch is not used by the kernels, and empty files take its place.

#include <algorithm>
#include <cassert>
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <cuda.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdexcept>
#include <type_traits>

template <typename T>
using Wide = typename std::conditional<sizeof(T) == 2, float, T>::type;

// A number that is computed with as float, like PyTorch's.
struct Half {
  __half bits;
  Half() = default;
  __host__ __device__ Half(float value) : bits(__float2half(value)) {}
  __host__ __device__ operator float() const { return __half2float(bits); }
};

#define AT_ASSERTM(...)

#ifdef DEFORMABLE_DETR
namespace deformable_detr {
#include DEFORMABLE_DETR
}
#undef CUDA_KERNEL_LOOP

// Sizes: images, pixels, heads, channels, levels, queries, points.
extern "C" void deformable_detr_forward_float32(void **a, const int *n, cudaStream_t stream) {
  deformable_detr::ms_deformable_im2col_cuda<float>(
      stream, (float *)a[0], (int64_t *)a[1], (int64_t *)a[2], (float *)a[3], (float *)a[4], n[0],
      n[1], n[2], n[3], n[4], n[5], n[6], (float *)a[5]);
}

extern "C" void deformable_detr_backward_float32(void **a, const int *n, cudaStream_t stream) {
  deformable_detr::ms_deformable_col2im_cuda<float>(
      stream, (float *)a[5], (float *)a[0], (int64_t *)a[1], (int64_t *)a[2], (float *)a[3],
      (float *)a[4], n[0], n[1], n[2], n[3], n[4], n[5], n[6], (float *)a[6], (float *)a[7],
      (float *)a[8]);
}
#endif

#ifdef DCNV3
namespace dcnv3 {
namespace at {
template <typename T>
using opmath_type = Wide<T>;
}
#include DCNV3
}
#undef CUDA_KERNEL_LOOP
#undef opmath_t

// Sizes: images, height, width, groups, channels of a group; windows of 3 x 3 with stride 1.
#define DCNV3_FUNCTIONS(NAME, T)                                                                   \
  extern "C" void dcnv3_forward_##NAME(void **a, const int *n, cudaStream_t stream) {              \
    dcnv3::dcnv3_im2col_cuda<T>(stream, (T *)a[0], (T *)a[1], (T *)a[2], (T *)a[3], 3, 3, 1, 1, 1, \
                                1, 1, 1, n[3], n[4], n[0], n[1], n[2], n[1], n[2], 1.0f, 0);       \
  }                                                                                                \
  extern "C" void dcnv3_backward_##NAME(void **a, const int *n, cudaStream_t stream) {             \
    dcnv3::dcnv3_col2im_cuda<T>(stream, (T *)a[3], (T *)a[0], (T *)a[1], (T *)a[2], 3, 3, 1, 1, 1, \
                                1, 1, 1, n[3], n[4], n[0], n[1], n[2], n[1], n[2], 1.0f, 0,        \
                                (float *)a[4], (float *)a[5], (float *)a[6]);                      \
  }
DCNV3_FUNCTIONS(float32, float)
DCNV3_FUNCTIONS(float16, Half)
#endif

#ifdef DCNV4_FORWARD
namespace dcnv4 {
namespace at {
template <typename T>
using opmath_type = Wide<T>;
}
#include DCNV4_FORWARD
#include DCNV4_BACKWARD
}

// Sizes: as DCNv3's; then channels of a thread and threads, forward and backward; the packed row.
#define DCNV4_FUNCTIONS(NAME, T)                                                                   \
  extern "C" void dcnv4_forward_##NAME(void **a, const int *n, cudaStream_t stream) {              \
    dcnv4::dcnv4_im2col_cuda<T>(stream, (T *)a[0], (T *)a[1], (T *)a[2], 3, 3, 1, 1, 1, 1, 1, 1,   \
                                n[3], n[4], n[0], n[1], n[2], n[1], n[2], 1.0f, 0, n[5], n[6],     \
                                false, n[9]);                                                      \
  }                                                                                                \
  extern "C" void dcnv4_backward_##NAME(void **a, const int *n, cudaStream_t stream) {             \
    dcnv4::dcnv4_col2im_cuda<T>(stream, (T *)a[0], (T *)a[1], (T *)a[2], 3, 3, 1, 1, 1, 1, 1, 1,   \
                                n[3], n[4], n[0], n[1], n[2], n[1], n[2], 1.0f, 0, (float *)a[3],  \
                                (float *)a[4], n[7], n[8], false, n[9]);                           \
  }
DCNV4_FUNCTIONS(float32, float)
DCNV4_FUNCTIONS(float16, Half)
#endif
