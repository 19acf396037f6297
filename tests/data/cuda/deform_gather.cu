// Deformable sampling, one thread per (pixel, tap, channel): four corners read with bounds checks.
// x [N, H, W, C], offset [N, Ho, Wo, taps, 2] (y, x), mask [N, Ho, Wo, taps],
// columns [N, Ho, Wo, taps, C].

__device__ __forceinline__ float corner(const float *image, int y, int x, int height, int width,
                                        int channels, int c) {
  if (y < 0 || y >= height || x < 0 || x >= width) return 0.f;
  return image[(static_cast<long long>(y) * width + x) * channels + c];
}

extern "C" __global__ void deform_gather(const float *__restrict__ x,
                                         const float *__restrict__ offset,
                                         const float *__restrict__ mask,
                                         float *__restrict__ columns, int batch, int height,
                                         int width, int channels, int out_height, int out_width,
                                         int kernel_width, int taps, int stride, int padding,
                                         int dilation) {
  const long long total =
      static_cast<long long>(batch) * out_height * out_width * taps * channels;
  for (long long index = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
       index < total; index += static_cast<long long>(gridDim.x) * blockDim.x) {
    const int c = index % channels;
    long long rest = index / channels;
    const int tap = rest % taps;
    rest /= taps;
    const int ox = rest % out_width;
    const int oy = rest / out_width % out_height;
    const int n = rest / out_width / out_height;

    const float offset_y = offset[(rest * taps + tap) * 2];
    const float offset_x = offset[(rest * taps + tap) * 2 + 1];
    const float floor_y = floorf(offset_y);
    const float floor_x = floorf(offset_x);
    const int y = oy * stride - padding + tap / kernel_width * dilation + static_cast<int>(floor_y);
    const int x0 = ox * stride - padding + tap % kernel_width * dilation + static_cast<int>(floor_x);
    const float ly = offset_y - floor_y;
    const float lx = offset_x - floor_x;

    const float *image = x + static_cast<long long>(n) * height * width * channels;
    const float top = corner(image, y, x0, height, width, channels, c) * (1.f - lx) +
                      corner(image, y, x0 + 1, height, width, channels, c) * lx;
    const float bottom = corner(image, y + 1, x0, height, width, channels, c) * (1.f - lx) +
                         corner(image, y + 1, x0 + 1, height, width, channels, c) * lx;
    columns[index] = (top * (1.f - ly) + bottom * ly) * mask[rest * taps + tap];
  }
}
