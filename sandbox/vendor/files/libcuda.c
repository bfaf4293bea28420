/* libcuda.so.1 of a simulated driver: there is no GPU behind it, and it says so. */
int cuInit(unsigned int flags) { (void)flags; return 100; /* CUDA_ERROR_NO_DEVICE */ }
int cuDriverGetVersion(int *version) { *version = SIM_CUDA; return 0; }
int cuDeviceGetCount(int *count) { *count = 0; return 3; /* CUDA_ERROR_NOT_INITIALIZED */ }
