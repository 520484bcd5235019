// AVX-VNNI, on Intel processors without AVX512: kernels_avx2.cpp with vpdpbusd, as in kernels_avx512.cpp.
#define AVX_VNNI
#define KERNELS avxvnni_kernels
#include "kernels_avx2.cpp"
