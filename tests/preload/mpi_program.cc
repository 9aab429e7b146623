// For cases/mpi.sh: broadcasts of fresh buffers of many sizes, every byte checked at every rank.
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <initializer_list>

namespace {

unsigned char expected(int round, std::size_t position) {
  return static_cast<unsigned char>(static_cast<std::size_t>(round) * 131 + position * 7 +
                                    (position >> 12));
}

bool broadcast(int rank, int round, std::size_t bytes) {
  auto* buffer = static_cast<unsigned char*>(std::malloc(bytes));
  if (buffer == nullptr) return false;
  const int root = round % 2;
  for (std::size_t i = 0; i < bytes; ++i) buffer[i] = rank == root ? expected(round, i) : 0;
  MPI_Bcast(buffer, static_cast<int>(bytes), MPI_BYTE, root, MPI_COMM_WORLD);
  bool right = true;
  for (std::size_t i = 0; i < bytes; ++i) right = right && buffer[i] == expected(round, i);
  std::free(buffer);
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  int right = 0;
  int round = 0;
  for (const std::size_t bytes : {1ul, 100ul, 4096ul, 65536ul, 258048ul, 1048576ul, 16777216ul})
    for (int i = 0; i < 6; ++i, ++round) right += broadcast(rank, round, bytes);
  int all = 0;
  MPI_Allreduce(&right, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  std::printf("rank %d: %d of %d broadcasts right, %d at all ranks\n", rank, right, round, all);
  MPI_Finalize();
  std::printf("rank %d: finalized\n", rank);
  return right == round ? 0 : 1;
}
