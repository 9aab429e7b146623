// A program under the verbs shim that lets checkpoints be taken of it gives its protection domain
// and its device back while rdmalloc_quiesce() is at work, as it should: in the event of a domain
// of its own. Seen to fail: the shim's domain could not be closed then, and stayed. The next look
// at it read the protection domain, which was gone (a segmentation fault); and after 48 checkpoints
// the shim had no place for another, or after 63 rdmalloc none, and nothing was served any more.
#include <sys/mman.h>

#include "tests/unit/registrars/shim_program.h"

namespace {

constexpr std::size_t kPage = 4096;
constexpr int kMoreThanDomains = 70;
ibv_context device = {};
ibv_pd* pd = nullptr;
bool closes_device = false;
int wrong = 0;

// Each in a page of its own, which goes with it.
void open_pd() {
  void* page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  check(page != MAP_FAILED);
  pd = static_cast<ibv_pd*>(page);
  pd->context = &device;
}

int on_event(rdmalloc_domain*, rdmalloc_domain_event event, void*) {
  if (event == RDMALLOC_DOMAIN_CLOSE) {
    wrong += ibv_dealloc_pd(pd) != 0;
    munmap(pd, kPage);
    if (closes_device) wrong += ibv_close_device(&device) != 0;
  }
  if (event == RDMALLOC_DOMAIN_RESUMED) open_pd();
  return 0;
}

rdmalloc_domain* own_domain() {
  rdmalloc_registrar_ops ops = own_registrar();
  rdmalloc_domain_attr attr = {};
  attr.size = sizeof attr;
  attr.event = on_event;
  rdmalloc_domain* domain = nullptr;
  check(rdmalloc_domain_open(&ops, nullptr, &attr, &domain) == 0);
  return domain;
}

void register_once(void* block) {
  ibv_mr* mr = ibv_reg_mr(pd, block, kBytes, IBV_ACCESS_LOCAL_WRITE);
  check(mr != nullptr && mr->pd == pd && ibv_dereg_mr(mr) == 0);
}

}  // namespace

int main() {
  void* block = malloc(kBytes);
  rdmalloc_domain* own = own_domain();
  open_pd();
  for (int i = 0; i < 2 * kMoreThanDomains; i++) {
    closes_device = i >= kMoreThanDomains;
    unsigned long before = stub_ibverbs_registrations;
    register_once(block);
    register_once(block);
    check(stub_ibverbs_registrations == before + 1);  // the second is the cache's
    check(rdmalloc_quiesce(5000) == 0 && rdmalloc_resume() == 0 && wrong == 0);
  }
  check(rdmalloc_domain_close(own) == 0);
  free(block);
  return 0;
}
