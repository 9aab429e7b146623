// application_mpi_windows WINDOWS: two ranks, one of which streams to the other, in the manner of
// osu_bw: windows of 64 messages of 1 KiB to 4 MiB, of 16 from 64 KiB on, here with buffers that
// are new for each window.
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

constexpr std::size_t kLeastBytes = 1 << 10, kMostBytes = 4 << 20;
constexpr std::size_t kLargeBytes = 64 << 10;
constexpr int kData = 100, kDone = 101;

std::vector<char*> fresh(std::size_t count, std::size_t bytes) {
  std::vector<char*> buffers(count);
  for (char*& buffer : buffers) buffer = static_cast<char*>(std::malloc(bytes));
  return buffers;
}
void free_all(const std::vector<char*>& buffers) {
  for (char* buffer : buffers) std::free(buffer);
}
void wait_for_all(std::vector<MPI_Request>& requests) {
  MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
}

void send_window(std::size_t bytes, std::size_t count, int value) {
  const std::vector<char*> buffers = fresh(count, bytes);
  std::vector<MPI_Request> requests(count);
  for (std::size_t i = 0; i < count; ++i) {
    std::memset(buffers[i], value, bytes);
    MPI_Isend(buffers[i], static_cast<int>(bytes), MPI_CHAR, 1, kData, MPI_COMM_WORLD,
              &requests[i]);
  }
  wait_for_all(requests);
  MPI_Recv(nullptr, 0, MPI_CHAR, 1, kDone, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  free_all(buffers);
}

// How many of them did not come as they were sent.
int receive_window(std::size_t bytes, std::size_t count, int value) {
  const std::vector<char*> buffers = fresh(count, bytes);
  std::vector<MPI_Request> requests(count);
  for (std::size_t i = 0; i < count; ++i)
    MPI_Irecv(buffers[i], static_cast<int>(bytes), MPI_CHAR, 0, kData, MPI_COMM_WORLD,
              &requests[i]);
  wait_for_all(requests);
  int wrong = 0;
  for (const char* buffer : buffers)
    if (buffer[0] != value || buffer[bytes - 1] != value) ++wrong;
  MPI_Send(nullptr, 0, MPI_CHAR, 0, kDone, MPI_COMM_WORLD);
  free_all(buffers);
  return wrong;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  int ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const int windows = argc == 2 ? std::atoi(argv[1]) : 0;
  if (windows < 1 || ranks != 2) {
    std::fputs("usage: mpirun -n 2 application_mpi_windows WINDOWS, of each size\n", stderr);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  int wrong = 0;
  for (std::size_t bytes = kLeastBytes; bytes <= kMostBytes; bytes *= 2)
    for (int i = 0; i < windows; ++i) {
      const std::size_t count = bytes < kLargeBytes ? 64 : 16;
      const int value = i % 100 + 1;
      if (rank == 0)
        send_window(bytes, count, value);
      else
        wrong += receive_window(bytes, count, value);
    }
  MPI_Finalize();
  return wrong == 0 ? 0 : 1;
}
