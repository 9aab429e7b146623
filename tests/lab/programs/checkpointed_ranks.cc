// A rank of an MPI job that checkpoints are taken of: broadcasts from each rank in turn, of small,
// middle and large buffers that are allocated, registered (locked) and freed each time, every byte
// compared.
//
//   checkpointed_ranks FOLDER
//
// Every 20 rounds rank R renames FOLDER/new.R to FOLDER/rank.R: "rounds N wrong M". Ends when rank
// 0 finds FOLDER/stop, with status 1 when a byte was wrong.
#include <errno.h>
#include <mpi.h>
#include <rdmalloc/registrar_mlock.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr int kSizes[] = {500, 70000, 1 << 20};

void report(const std::string& folder, int rank, long rounds, long wrong) {
  std::string fresh = folder + "/new." + std::to_string(rank);
  FILE* file = std::fopen(fresh.c_str(), "w");
  std::fprintf(file, "rounds %ld wrong %ld\n", rounds, wrong);
  std::fclose(file);
  std::rename(fresh.c_str(), (folder + "/rank." + std::to_string(rank)).c_str());
}

// One broadcast; the bytes that were wrong.
long broadcast(rdmalloc_domain* domain, int rank, int root, long round) {
  int bytes = kSizes[round % 3];
  auto expected = static_cast<unsigned char>(round * 7 + 1);
  auto* buffer = static_cast<unsigned char*>(std::malloc(static_cast<std::size_t>(bytes)));
  std::memset(buffer, rank == root ? expected : 0, static_cast<std::size_t>(bytes));
  rdmalloc_reg* reg = nullptr;
  int error = rdmalloc_reg_get(domain, buffer, static_cast<std::size_t>(bytes),
                               RDMALLOC_ACCESS_LOCAL, &reg);
  long wrong = error != 0 && error != -EAGAIN;  // EAGAIN: quiesced now
  MPI_Bcast(buffer, bytes, MPI_BYTE, root, MPI_COMM_WORLD);
  for (int i = 0; i < bytes; ++i) wrong += buffer[i] != expected;
  if (error == 0) rdmalloc_reg_put(reg);
  std::free(buffer);
  return wrong;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  if (argc != 2) return 2;
  const std::string folder = argv[1];
  int rank = 0, ranks = 0, stops = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  rdmalloc_domain* domain = nullptr;
  long wrong = rdmalloc_domain_open_mlock(nullptr, &domain) != 0;
  for (long round = 1; stops == 0; ++round) {
    wrong += broadcast(domain, rank, static_cast<int>(round % ranks), round);
    if (round % 20 != 0) continue;
    report(folder, rank, round, wrong);
    if (rank == 0) stops = access((folder + "/stop").c_str(), F_OK) == 0;
    MPI_Bcast(&stops, 1, MPI_INT, 0, MPI_COMM_WORLD);
  }
  wrong += rdmalloc_domain_close(domain) != 0;
  MPI_Finalize();
  return wrong != 0;
}
