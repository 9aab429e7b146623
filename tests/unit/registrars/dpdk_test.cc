// The dpdk registrar over the real EAL, without huge pages and without PCI, with two virtual
// devices. Mapping for a device goes through the functions below, which stand in front of DPDK's
// and call them, so that a device can refuse. Each test was seen to fail; the comment at each says
// how.
#define ALLOW_EXPERIMENTAL_API 1
#include <dlfcn.h>
#include <rdmalloc/registrar_dpdk.h>
#include <rte_config.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_mbuf.h>
#include <rte_memory.h>
#include <sys/mman.h>

#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/heap_attr.h"
#include "tests/unit/registrars/support.h"

namespace {

constexpr std::size_t kMiB = 1 << 20;

struct Devices {
  std::mutex mutex;
  std::vector<std::string> calls;  // "map 0", "unmap 1", in their order
  std::map<rte_device*, int> numbers;
  int refuses_map = -1, refuses_unmap = -1;  // the device that does
  bool are_physical = false;                 // DPDK says that it runs with physical addresses
} devices;

using Mapping = int (*)(rte_device*, void*, std::uint64_t, std::size_t);

int note(const char* what, int refuses, rte_device* device, void* addr, std::size_t length) {
  std::lock_guard<std::mutex> guard(devices.mutex);
  int number = devices.numbers[device];
  devices.calls.push_back(std::string(what) + " " + std::to_string(number));
  if (number == refuses) {
    rte_errno = ENOMEM;
    return -1;
  }
  auto* real =
      reinterpret_cast<Mapping>(dlsym(RTLD_NEXT, (std::string("rte_dev_dma_") + what).c_str()));
  return real(device, addr, reinterpret_cast<std::uint64_t>(addr), length);
}

}  // namespace

extern "C" rte_iova_mode rte_eal_iova_mode() {
  if (devices.are_physical) return RTE_IOVA_PA;
  return reinterpret_cast<rte_iova_mode (*)()>(dlsym(RTLD_NEXT, "rte_eal_iova_mode"))();
}
extern "C" int rte_dev_dma_map(rte_device* device, void* addr, std::uint64_t, std::size_t length) {
  return note("map", devices.refuses_map, device, addr, length);
}
extern "C" int rte_dev_dma_unmap(rte_device* device, void* addr, std::uint64_t,
                                 std::size_t length) {
  return note("unmap", devices.refuses_unmap, device, addr, length);
}

namespace {

// EAL keeps pointers to its arguments, those of a start that failed too.
int init_eal(const char* iova_mode) {
  static std::deque<std::string> kept;
  std::vector<char*> pointers;
  // The drivers that are wanted, or EAL loads the hundred that are installed.
  for (const char* argument :
       {"dpdk_test", "--no-huge", "-m", "64", "--no-pci", "--no-shconf", "--no-telemetry",
        "--log-level=critical", iova_mode, "-d", "librte_net_null.so", "-d",
        "librte_mempool_ring.so", "--vdev=net_null0", "--vdev=net_null1"})
    pointers.push_back(kept.emplace_back(argument).data());
  return rte_eal_init(static_cast<int>(pointers.size()), pointers.data());
}

// DPDK's ranges of external memory now.
std::size_t known_ranges() {
  std::size_t count = 0;
  rte_memseg_list_walk(
      [](const rte_memseg_list* list, void* arg) {
        if (list->external) ++*static_cast<std::size_t*>(arg);
        return 0;
      },
      &count);
  return count;
}

// First, since every other test starts EAL.
TEST(DpdkAbsent, before_eal_is_started_no_domain_opens) {
  rdmalloc_domain* domain = nullptr;
  EXPECT_EQ(rdmalloc_domain_open_dpdk(nullptr, 0, nullptr, &domain), -EINVAL);
}

// A start that fails at its arguments leaves DPDK as it was, and us.
TEST(DpdkAbsent, after_a_start_that_fails_the_next_one_works) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "SKIP: DPDK keeps what it has read of its arguments, which is a leak to ASan";
#endif
  rdmalloc_domain* domain = nullptr;
  EXPECT_LT(init_eal("--iova-mode=neither"), 0);
  EXPECT_EQ(rdmalloc_domain_open_dpdk(nullptr, 0, nullptr, &domain), -EINVAL);
  ASSERT_GE(init_eal("--iova-mode=va"), 0) << rte_strerror(rte_errno);
  ASSERT_EQ(rdmalloc_domain_open_dpdk(nullptr, 0, nullptr, &domain), 0);
  void* block = rdmalloc_malloc(kMiB);
  rdmalloc_reg* reg = nullptr;
  EXPECT_EQ(rdmalloc_reg_get(domain, block, kMiB, RDMALLOC_ACCESS_LOCAL, &reg), 0);
  rdmalloc_reg_put(reg);
  rdmalloc_free(block);
  EXPECT_EQ(rdmalloc_domain_close(domain), 0);
}

class Dpdk : public testing::Test {
 protected:
  // Once in a process. Not for the suite as a whole: ctest would take what fails there for a skip.
  static void start_eal() {
    if (!both.empty()) return;
    // Or DpdkAbsent has.
    if (init_eal("--iova-mode=va") < 0) {
      ASSERT_EQ(rte_errno, EALREADY) << rte_strerror(rte_errno);
    }
    rte_dev_iterator iterator;
    rte_device* device = nullptr;
    RTE_DEV_FOREACH(device, "bus=vdev", &iterator) {
      devices.numbers[device] = static_cast<int>(both.size());
      both.push_back(device);
    }
    ASSERT_EQ(both.size(), 2u);
  }
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(start_eal());
    others = known_ranges();
    devices.calls.clear();
    devices.refuses_map = devices.refuses_unmap = -1;
  }
  void TearDown() override {
    if (domain != nullptr) {
      EXPECT_EQ(rdmalloc_domain_close(domain), 0);
    }
  }
  void open(std::size_t device_count = 2) {
    ASSERT_EQ(rdmalloc_domain_open_dpdk(both.data(), device_count, nullptr, &domain), 0);
  }
  rdmalloc_reg* get(void* addr, std::size_t length, std::uint32_t access = RDMALLOC_ACCESS_LOCAL) {
    rdmalloc_reg* reg = nullptr;
    error = rdmalloc_reg_get(domain, addr, length, access, &reg);
    return reg;
  }
  // A block where no earlier test of this process has left a range in quarantine, which no domain
  // would register again. Seen to fail without it: all tests in one process.
  static char* block_out_of_quarantine(std::size_t bytes) {
    for (;;) {
      char* block = static_cast<char*>(rdmalloc_malloc(bytes));
      bool is_out = true;
      for (const auto& [begin, length] : left_in_quarantine)
        is_out &= block >= begin + length || block + bytes <= begin;
      if (is_out) return block;  // what was passed over stays allocated
    }
  }
  static std::size_t ours() { return known_ranges() - others; }

  static inline std::vector<rte_device*> both;
  static inline std::size_t others = 0;
  static inline std::vector<std::pair<char*, std::size_t>> left_in_quarantine;
  rdmalloc_domain* domain = nullptr;
  int error = 0;
};

// Fails when make_known() is left out (DPDK refuses to map what it does not know), or gives no IO
// addresses.
TEST_F(Dpdk, a_registered_block_is_external_memory_mapped_for_each_device) {
  open();
  char* block = static_cast<char*>(rdmalloc_malloc(4 * kMiB));
  rdmalloc_reg* reg = get(block, 4 * kMiB);
  ASSERT_NE(reg, nullptr) << error;
  EXPECT_EQ(devices.calls, (std::vector<std::string>{"map 0", "map 1"}));
  rte_memseg_list* list = rte_mem_virt2memseg_list(block);
  ASSERT_NE(list, nullptr);
  EXPECT_TRUE(list->external);
  EXPECT_EQ(list->base_va, rdmalloc_reg_addr(reg));
  EXPECT_EQ(list->len, rdmalloc_reg_length(reg));
  rte_memseg* segment = rte_mem_virt2memseg(block + 3 * kMiB, list);
  ASSERT_NE(segment, nullptr);
  EXPECT_EQ(segment->iova, segment->addr_64);
  rdmalloc_key key;
  rdmalloc_reg_key_of(reg, &key);
  EXPECT_EQ(key.lkey, reinterpret_cast<std::uint64_t>(rdmalloc_reg_addr(reg)));
  EXPECT_EQ(get(block + kMiB, kMiB), reg);
  rdmalloc_reg_put(reg);
  rdmalloc_reg_put(reg);
  EXPECT_EQ(ours(), 1u) << "kept for the next";
  devices.calls.clear();
  rdmalloc_free(block);
  EXPECT_GT(rdmalloc_purge(0), 0);
  EXPECT_EQ(devices.calls, (std::vector<std::string>{"unmap 1", "unmap 0"}));
  EXPECT_EQ(ours(), 0u);
  EXPECT_EQ(rte_mem_virt2memseg_list(block), nullptr);
}

// Packets in our memory: a pool of mbufs whose data lies in a block of a registered heap.
TEST_F(Dpdk, mbufs_of_a_pool_lie_in_a_registered_heap) {
  open();
  rdmalloc_heap_attr attr = rdmalloc_test::registered_heap_attr(&domain, 4 * kMiB);
  rdmalloc_heap* heap = nullptr;
  ASSERT_EQ(rdmalloc_heap_create(&attr, &heap), 0);
  constexpr std::uint16_t kRoom = RTE_MBUF_DEFAULT_BUF_SIZE;
  constexpr unsigned kPackets = 511;
  std::size_t bytes = std::size_t{kRoom} * (kPackets + 1);
  auto* block = static_cast<char*>(rdmalloc_heap_aligned(heap, 4096, bytes));
  ASSERT_NE(block, nullptr);
  rdmalloc_key key;
  ASSERT_EQ(rdmalloc_reg_key(domain, block, bytes, RDMALLOC_ACCESS_LOCAL, &key), 0);
  rte_pktmbuf_extmem external = {};
  external.buf_ptr = block;
  external.buf_iova = reinterpret_cast<rte_iova_t>(block);
  external.buf_len = bytes;
  external.elt_size = kRoom;
  rte_mempool* pool =
      rte_pktmbuf_pool_create_extbuf("ours", kPackets, 0, 0, kRoom, SOCKET_ID_ANY, &external, 1);
  ASSERT_NE(pool, nullptr) << rte_strerror(rte_errno);
  std::vector<rte_mbuf*> packets(kPackets);
  ASSERT_EQ(rte_pktmbuf_alloc_bulk(pool, packets.data(), kPackets), 0);
  EXPECT_EQ(rte_pktmbuf_alloc(pool), nullptr);
  for (rte_mbuf* packet : packets) {
    char* data = rte_pktmbuf_append(packet, 1000);
    ASSERT_NE(data, nullptr);
    EXPECT_TRUE(data >= block && data + 1000 <= block + bytes);
    EXPECT_EQ(rte_pktmbuf_iova(packet), reinterpret_cast<rte_iova_t>(data));
    rte_memseg_list* list = rte_mem_virt2memseg_list(data);
    ASSERT_NE(list, nullptr);
    EXPECT_TRUE(list->external) << "known to DPDK as external memory";
    memset(data, 1, 1000);
  }
  rte_pktmbuf_free_bulk(packets.data(), kPackets);
  EXPECT_EQ(rte_mempool_avail_count(pool), kPackets);
  rte_mempool_free(pool);
  rdmalloc_heap_free(heap, block);
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
  EXPECT_EQ(ours(), 0u);
}

TEST_F(Dpdk, without_a_device_memory_is_made_known_only) {
  open(0);
  char* block = static_cast<char*>(rdmalloc_malloc(kMiB));
  rdmalloc_reg_put(get(block, kMiB));
  EXPECT_EQ(error, 0);
  EXPECT_EQ(ours(), 1u);
  EXPECT_TRUE(devices.calls.empty());
  rdmalloc_free(block);
  rdmalloc_domain_flush(domain);
  EXPECT_EQ(ours(), 0u);
}

// Fails when map() or dpdk_register() leaves out a step of the undoing.
TEST_F(Dpdk, what_one_device_refuses_is_undone_for_the_others) {
  open();
  devices.refuses_map = 1;
  char* block = static_cast<char*>(rdmalloc_malloc(kMiB));
  EXPECT_EQ(get(block, kMiB), nullptr);
  EXPECT_EQ(error, -ENOMEM);
  EXPECT_EQ(devices.calls, (std::vector<std::string>{"map 0", "map 1", "unmap 0"}));
  EXPECT_EQ(ours(), 0u);
  EXPECT_EQ(counters_of(domain).live_count, 0u);
  devices.refuses_map = -1;
  rdmalloc_reg_put(get(block, kMiB));
  EXPECT_EQ(error, 0) << "the next try works";
  rdmalloc_free(block);
}

// Fails when dpdk_deregister() forgets the range all the same, or place_of() takes it for whole.
TEST_F(Dpdk, I3_what_a_device_does_not_unmap_keeps_its_pages) {
  open();
  char* block = static_cast<char*>(rdmalloc_aligned_alloc(2 * kMiB, 4 * kMiB));
  memset(block, 42, 4 * kMiB);
  rdmalloc_reg_put(get(block, 4 * kMiB));
  devices.refuses_unmap = 1;
  rdmalloc_free(block);
  rdmalloc_purge(0);
  EXPECT_EQ(counters_of(domain).quarantined, 1u);
  EXPECT_EQ(ours(), 1u);
  unsigned char is_resident[1] = {};
  ASSERT_EQ(mincore(block, 4096, is_resident), 0);
  EXPECT_EQ(is_resident[0] & 1, 1) << "given back under a device's mapping";
  // Not registered anew over it: the other device has it no more.
  devices.refuses_unmap = -1;
  char* again = static_cast<char*>(rdmalloc_aligned_alloc(2 * kMiB, 4 * kMiB));
  if (again == block) {
    EXPECT_EQ(get(again, 4 * kMiB), nullptr);
    EXPECT_EQ(error, -EEXIST);
  }
  rdmalloc_free(again);
  rte_extmem_unregister(block, 4 * kMiB);
}

// A span is freed with its registration alive, and its addresses come back in another block, longer
// than that. Fails when place_of() does not look for overlaps, or ask_twice() does not drop what is
// in the way.
TEST_F(Dpdk, what_is_in_the_way_and_idle_goes) {
  open();
  char* room = static_cast<char*>(
      mmap(nullptr, 16 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  // Adopted foreign memory shows it without the allocator's choice of addresses.
  ASSERT_EQ(rdmalloc_adopt(room, 16 * kMiB), 0);
  rdmalloc_reg_put(get(room + 12 * kMiB, kMiB));  // the least recently put
  rdmalloc_reg_put(get(room, 4 * kMiB));
  rdmalloc_reg* longer = get(room + 3 * kMiB, 4 * kMiB);
  EXPECT_NE(longer, nullptr) << error;
  EXPECT_EQ(ours(), 2u);
  EXPECT_EQ(get(room, 4 * kMiB), nullptr) << "two mappings of a page";
  EXPECT_EQ(error, -EEXIST);
  rdmalloc_reg_put(longer);
  rdmalloc_reg_put(get(room, 4 * kMiB));
  EXPECT_EQ(error, 0) << "the next try works";
  EXPECT_EQ(rdmalloc_disown(room, 16 * kMiB), 0);
  EXPECT_EQ(ours(), 0u);
  munmap(room, 16 * kMiB);
}

// DPDK's table of ranges is full: idle ones go, then it is an error. Fails when -ENOSPC is not what
// comes of it.
TEST_F(Dpdk, beyond_its_ranges_idle_ones_go_and_then_it_is_an_error) {
  open(0);
  std::vector<void*> blocks;
  std::vector<rdmalloc_reg*> held;
  for (int i = 0; i < RTE_MAX_MEMSEG_LISTS + 10; ++i) {
    blocks.push_back(rdmalloc_malloc(kMiB));
    rdmalloc_reg_put(get(blocks.back(), kMiB));
    ASSERT_EQ(error, 0) << "idle ones were not evicted for block " << i;
  }
  EXPECT_GE(counters_of(domain).evictions, 10u);
  for (void* block : blocks) {
    held.push_back(get(block, kMiB));
    if (held.back() == nullptr) break;
  }
  EXPECT_TRUE(error == -ENOSPC || error == -ENOMEM) << error;
  for (rdmalloc_reg* reg : held) rdmalloc_reg_put(reg);
  for (void* block : blocks) rdmalloc_free(block);
}

// Fails when place_of() does not know the very same range again: the duplicate's end would unmap
// the winner.
TEST_F(Dpdk, many_threads_register_the_same_blocks) {
  open();
  std::vector<char*> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(static_cast<char*>(rdmalloc_malloc(kMiB)));
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (std::size_t i = 0; i < 400; ++i) {
        char* block = blocks[i % blocks.size()];
        rdmalloc_reg* reg = nullptr;
        if (rdmalloc_reg_get(domain, block, kMiB, RDMALLOC_ACCESS_LOCAL, &reg) != 0)
          ++failures;
        else if (rte_mem_virt2memseg_list(block) == nullptr)
          ++failures;
        rdmalloc_reg_put(reg);
        if (i % 16 == 0) rdmalloc_domain_flush(domain);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  rdmalloc_domain_flush(domain);
  EXPECT_EQ(ours(), 0u);
  for (char* block : blocks) rdmalloc_free(block);
}

TEST_F(Dpdk, bad_use_is_refused) {
  rdmalloc_domain* other = nullptr;
  rte_device* none[] = {nullptr};
  EXPECT_EQ(rdmalloc_domain_open_dpdk(none, 1, nullptr, &other), -EINVAL);
  EXPECT_EQ(rdmalloc_domain_open_dpdk(nullptr, 1, nullptr, &other), -EINVAL);
  devices.are_physical = true;
  EXPECT_EQ(rdmalloc_domain_open_dpdk(both.data(), 2, nullptr, &other), -ENOTSUP);
  devices.are_physical = false;
  open(0);
  char* block = static_cast<char*>(rdmalloc_malloc(kMiB));
  EXPECT_EQ(get(block, kMiB, RDMALLOC_ACCESS_REMOTE_READ), nullptr);
  EXPECT_EQ(error, -EACCES);
  rdmalloc_reg* reg = get(block, kMiB);
  EXPECT_EQ(rdmalloc_domain_close(domain), -EBUSY);
  rdmalloc_reg_put(reg);
  rdmalloc_free(block);
}

// Fails when domain_close() does not tell a parent's domain.
TEST_F(Dpdk, I11_a_fork_child_calls_nothing_of_dpdks) {
  open();
  char* block = static_cast<char*>(rdmalloc_malloc(kMiB));
  rdmalloc_reg* reg = get(block, kMiB);
  devices.calls.clear();
  pid_t child = fork();
  if (child == 0) {
    rdmalloc_reg* again = nullptr;
    int result = rdmalloc_reg_get(domain, block, kMiB, RDMALLOC_ACCESS_LOCAL, &again);
    rdmalloc_reg_put(reg);
    rdmalloc_free(block);
    bool is_right = result == -ECHILD && rdmalloc_domain_close(domain) == 0 &&
                    devices.calls.empty() && ours() == 1;
    _exit(is_right ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  rdmalloc_reg_put(reg);
  rdmalloc_free(block);
}

// Fails when make_known() is not undone after a refused map.
TEST_F(Dpdk, I10_whatever_fails_is_undone) {
  std::size_t before = known_ranges();
  auto open = [&](rdmalloc_domain** made) {
    return rdmalloc_domain_open_dpdk(both.data(), both.size(), nullptr, made);
  };
  fail_each({"dpdk_register", "dpdk_map", "registrar_memory"},
            [&] { return use_once(open, RDMALLOC_ACCESS_LOCAL); });
  EXPECT_EQ(known_ranges(), before);
}

// The second device refuses, and then the first does not unmap. Fails when map() gives the first
// error, or dpdk_register() makes DPDK forget the range all the same.
TEST_F(Dpdk, I3_half_a_registration_that_cannot_be_undone_keeps_its_pages) {
  namespace os = rdmalloc::os;
  open();
  char* block = block_out_of_quarantine(2 * kMiB);
  std::size_t before = known_ranges();
  os::arm_fault(os::Site::kDpdkMap, 2);
  os::arm_fault(os::Site::kDpdkUnmap, 1);
  EXPECT_EQ(get(block, 2 * kMiB), nullptr);
  EXPECT_EQ(error, -ENOTRECOVERABLE);
  EXPECT_EQ(counters_of(domain).quarantined, 1u);
  EXPECT_EQ(known_ranges(), before + 1);
  memset(block, 5, 2 * kMiB);
  rdmalloc_free(block);
  rdmalloc_purge(0);
  EXPECT_EQ(block[100], 5) << "its pages went";
  left_in_quarantine.emplace_back(block, 2 * kMiB);
}

// No device reaches it any more, but DPDK knows it still, and takes no other over it. Fails when
// what forget() says is not dpdk_deregister()'s own result.
TEST_F(Dpdk, I3_what_dpdk_does_not_forget_keeps_its_pages_and_its_place) {
  namespace os = rdmalloc::os;
  open();
  char* block = block_out_of_quarantine(2 * kMiB);
  char* other = block_out_of_quarantine(2 * kMiB);
  std::size_t before = known_ranges();
  rdmalloc_reg_put(get(block, 2 * kMiB));
  EXPECT_EQ(error, 0);
  os::arm_fault(os::Site::kDpdkUnregister, 1);
  EXPECT_EQ(rdmalloc_domain_flush(domain), 0);
  EXPECT_EQ(counters_of(domain).quarantined, 1u);
  EXPECT_EQ(known_ranges(), before + 1);
  EXPECT_EQ(get(block, 2 * kMiB), nullptr);
  EXPECT_EQ(error, -EEXIST);
  memset(block, 5, 2 * kMiB);
  rdmalloc_free(block);
  rdmalloc_purge(0);
  EXPECT_EQ(block[100], 5) << "its pages went";
  // And half-way: refused by the first device, and not forgotten.
  os::arm_fault(os::Site::kDpdkMap, 1);
  os::arm_fault(os::Site::kDpdkUnregister, 1);
  EXPECT_EQ(get(other, 2 * kMiB), nullptr);
  EXPECT_EQ(error, -ENOTRECOVERABLE);
  EXPECT_EQ(counters_of(domain).quarantined, 2u);
  left_in_quarantine.emplace_back(block, 2 * kMiB);
  left_in_quarantine.emplace_back(other, 2 * kMiB);
}

}  // namespace
