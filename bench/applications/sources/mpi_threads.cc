// application_mpi_threads THREADS MESSAGES: ranks with MPI_THREAD_MULTIPLE, in the manner of
// osu_latency_mt: each thread of rank 0 plays ping-pong with its partner of rank 1, here with a
// buffer that is new for each message, of 64 B to 256 KiB.
#include <mpi.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

std::atomic<int> wrong{0};

void send_fresh(int to, int tag, std::size_t bytes, int value) {
  auto* buffer = static_cast<char*>(std::malloc(bytes));
  std::memset(buffer, value, bytes);
  MPI_Send(buffer, static_cast<int>(bytes), MPI_CHAR, to, tag, MPI_COMM_WORLD);
  std::free(buffer);
}

void receive_fresh(int from, int tag, std::size_t bytes, int value) {
  auto* buffer = static_cast<char*>(std::malloc(bytes));
  MPI_Recv(buffer, static_cast<int>(bytes), MPI_CHAR, from, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  // Relaxed: read once the thread was joined.
  if (buffer[0] != value || buffer[bytes - 1] != value)
    wrong.fetch_add(1, std::memory_order_relaxed);
  std::free(buffer);
}

void play(int rank, int tag, int messages) {
  for (int i = 0; i < messages; ++i) {
    const std::size_t bytes = std::size_t{64} << ((i * 5 + tag) % 13);
    const int value = (i + tag) % 100 + 1;
    if (rank == 0) {
      send_fresh(1, tag, bytes, value);
      receive_fresh(1, tag, bytes, value);
    } else {
      receive_fresh(0, tag, bytes, value);
      send_fresh(0, tag, bytes, value);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  int rank = 0;
  int ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const int threads = argc == 3 ? std::atoi(argv[1]) : 0;
  const int messages = argc == 3 ? std::atoi(argv[2]) : 0;
  if (threads < 1 || threads > 256 || messages < 1 || ranks != 2 ||
      provided != MPI_THREAD_MULTIPLE) {
    std::fputs(
        "usage: mpirun -n 2 application_mpi_threads THREADS MESSAGES, with MPI_THREAD_MULTIPLE\n",
        stderr);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  std::vector<std::thread> team;
  for (int i = 0; i < threads; ++i) team.emplace_back([=] { play(rank, i, messages); });
  for (std::thread& thread : team) thread.join();
  MPI_Finalize();
  return wrong == 0 ? 0 : 1;
}
