// Counters of domains in the allocator's statistics.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "tests/unit/regcache/stub_fabric.h"

namespace {

std::string printed(rdmalloc_stats_format format) {
  int ends[2];
  if (pipe(ends) != 0) return "";
  EXPECT_EQ(rdmalloc_stats_print(ends[1], format), 0);
  close(ends[1]);
  std::string all;
  char part[4096];
  for (ssize_t got; (got = read(ends[0], part, sizeof part)) > 0;)
    all.append(part, static_cast<size_t>(got));
  close(ends[0]);
  return all;
}

// What stands between `begin` and the next `end` behind it; empty where there is none.
std::string between(const std::string& text, const std::string& begin, const std::string& end) {
  size_t at = text.find(begin);
  if (at == std::string::npos) return "";
  at += begin.size();
  return text.substr(at, text.find(end, at) - at);
}

// The number behind "name": in an object.
int64_t number(const std::string& object, const std::string& name) {
  size_t at = object.find("\"" + name + "\":");
  return at == std::string::npos ? -1 : std::stoll(object.substr(at + name.size() + 3));
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A domain of its own name, closed at its end; one registration made and put.
class Named {
 public:
  explicit Named(const char* name) {
    fabric.ops.name = name;
    EXPECT_EQ(rdmalloc_domain_open(&fabric.ops, &fabric, nullptr, &handle), 0);
    block = rdmalloc_malloc(1 << 20);
    for (int i = 0; i < 3; ++i) {
      rdmalloc_reg* reg = nullptr;
      EXPECT_EQ(rdmalloc_reg_get(handle, block, 1 << 20, RDMALLOC_ACCESS_LOCAL, &reg), 0);
      rdmalloc_reg_put(reg);
    }
  }
  ~Named() {
    EXPECT_EQ(rdmalloc_domain_close(handle), 0);
    rdmalloc_free(block);
  }
  Named(const Named&) = delete;
  Named& operator=(const Named&) = delete;
  StubFabric fabric;
  rdmalloc_domain* handle = nullptr;
  void* block = nullptr;
};

// Fails when rdmalloc_domain_close() does not add up, or the table is not left for the allocator.
TEST(Statistics, have_each_domains_counters_and_the_closed_ones_sum) {
  int64_t closed_before = std::max(
      int64_t{0},
      number(between(printed(RDMALLOC_STATS_JSON), "\"closed_domains\":{", "}"), "domains"));
  int64_t sums_before = std::max(
      int64_t{0},
      number(between(printed(RDMALLOC_STATS_JSON), "\"closed_domains\":{", "}"), "registrations"));
  Named stays("stays");
  { Named goes("goes"); }
  { Named goes("goes too"); }
  std::string json = printed(RDMALLOC_STATS_JSON);
  EXPECT_FALSE(contains(json, "goes")) << json;
  std::string open = between(json, "\"name\":\"stays\",", "}");
  EXPECT_EQ(number(open, "domains"), 1);
  EXPECT_EQ(number(open, "hits"), 2);
  EXPECT_EQ(number(open, "misses"), 1);
  EXPECT_EQ(number(open, "live_bytes"), 1 << 20);
  std::string closed = between(json, "\"closed_domains\":{", "}");
  EXPECT_EQ(number(closed, "domains") - closed_before, 2);
  EXPECT_EQ(number(closed, "registrations") - sums_before, 2);
  EXPECT_EQ(number(closed, "live_count"), 0);
  EXPECT_TRUE(contains(printed(RDMALLOC_STATS_TEXT), "\"stays\"\n  domains "));
  EXPECT_TRUE(contains(printed(RDMALLOC_STATS_TEXT), "closed domains\n  domains "));
  std::string lines = printed(RDMALLOC_STATS_PROMETHEUS);
  EXPECT_TRUE(contains(lines, ",name=\"stays\"} 2\n")) << lines;
  EXPECT_TRUE(contains(lines, "rdmalloc_domain_hits{domain=\"closed\""));
}

// Fails when quoted() copies what it is given.
TEST(Statistics, quote_what_a_registrar_calls_itself) {
  std::string name = "a \"b\" \\ \n \xc3\xa4" + std::string(100, 'x');
  Named domain(name.c_str());
  std::string quoted = "\"name\":\"a \\\"b\\\" \\\\ ? ??" + std::string(52, 'x') + "\",";
  EXPECT_TRUE(contains(printed(RDMALLOC_STATS_JSON), quoted)) << printed(RDMALLOC_STATS_JSON);
}

}  // namespace
