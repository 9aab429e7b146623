#include "alloc/os/huge_pool.h"

#include <cstring>

#include "alloc/os/decimal.h"
#include "alloc/os/file.h"

namespace rdmalloc::os {
namespace {

// A path put together from words and numbers.
class Path {
 public:
  explicit Path(char* buffer) : end_(buffer) { *end_ = 0; }
  Path& text(const char* words) {
    std::size_t length = std::strlen(words);
    std::memcpy(end_, words, length + 1);
    end_ += length;
    return *this;
  }
  Path& number(std::uint64_t value) { return text(Decimal(value).c_str()); }

 private:
  char* end_;
};

bool read_number(std::size_t page_bytes, int node, const char* file, std::uint64_t* value) {
  char path[kHugePoolPath], text[32];
  huge_pool_file(page_bytes, node, file, path);
  if (read_file(path, text) == 0) return false;
  *value = 0;
  for (const char* c = text; *c >= '0' && *c <= '9'; ++c)
    *value = *value * 10 + static_cast<unsigned>(*c - '0');
  return true;
}

}  // namespace

void huge_pool_file(std::size_t page_bytes, int node, const char* file, char* path) {
  // The longest: node 1,023, pages of 16 GiB, "surplus_hugepages". 95 bytes.
  Path to(path);
  if (node >= 0)
    to.text("/sys/devices/system/node/node").number(static_cast<unsigned>(node)).text("/");
  else
    to.text("/sys/kernel/mm/");
  to.text("hugepages/hugepages-").number(page_bytes >> 10).text("kB/").text(file);
}

bool huge_pool(std::size_t page_bytes, int node, HugePool* pool) {
  std::uint64_t reserved = 0;
  if (!read_number(page_bytes, node, "nr_hugepages", &pool->pages) ||
      !read_number(page_bytes, node, "free_hugepages", &pool->free))
    return false;
  // Reservations are of no node.
  if (node < 0) read_number(page_bytes, node, "resv_hugepages", &reserved);
  pool->free -= reserved < pool->free ? reserved : pool->free;
  return true;
}

}  // namespace rdmalloc::os
