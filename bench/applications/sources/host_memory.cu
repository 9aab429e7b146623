// host_memory THREADS TIMES: each thread fills blocks of malloc, of 4 KiB to 4 MiB, lets a GPU read them and frees them, half of
// them registered (cudaHostRegister) and half not, and trims now and then. Fails where the GPU has read another byte
// than was written: pages that were given back while they were registered, or while a copy was under way.
#include <cuda_runtime.h>
#include <malloc.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(2);
}
#define CHECK(call) check(call, #call)

__global__ void sum(const unsigned char* bytes, size_t count, unsigned long long* result) {
  unsigned long long own = 0;
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    own += bytes[i];
  atomicAdd(result, own);
}

constexpr size_t kMost = 4 << 20;
std::atomic<int> wrong{0};

void work(unsigned seed, int times) {
  cudaStream_t stream;
  unsigned char* on_device = nullptr;
  unsigned long long *result = nullptr, seen = 0;
  CHECK(cudaStreamCreate(&stream));
  CHECK(cudaMalloc(&on_device, kMost));
  CHECK(cudaMalloc(&result, sizeof *result));
  for (int i = 0; i < times; ++i) {
    size_t bytes = 4096 + rand_r(&seed) % (kMost - 4096);
    auto value = static_cast<unsigned char>(1 + rand_r(&seed) % 250);
    auto* block = static_cast<unsigned char*>(std::malloc(bytes));
    if (block == nullptr) std::exit(2);
    std::memset(block, value, bytes);
    bool is_registered = i % 2 == 0;
    if (is_registered) CHECK(cudaHostRegister(block, bytes, cudaHostRegisterDefault));
    CHECK(cudaMemsetAsync(result, 0, sizeof *result, stream));
    CHECK(cudaMemcpyAsync(on_device, block, bytes, cudaMemcpyHostToDevice, stream));
    sum<<<64, 256, 0, stream>>>(on_device, bytes, result);
    CHECK(cudaMemcpyAsync(&seen, result, sizeof seen, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    if (seen != static_cast<unsigned long long>(value) * bytes) ++wrong;
    if (is_registered) CHECK(cudaHostUnregister(block));
    std::free(block);
    if (i % 64 == 0) malloc_trim(0);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: host_memory THREADS TIMES\n");
    return 2;
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < std::atoi(argv[1]); ++i)
    threads.emplace_back(work, static_cast<unsigned>(i) + 1, std::atoi(argv[2]));
  for (std::thread& thread : threads) thread.join();
  if (wrong != 0) std::fprintf(stderr, "%d blocks were read wrongly\n", wrong.load());
  return wrong == 0 ? 0 : 1;
}
