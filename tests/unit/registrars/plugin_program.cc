// Registrars as plugins load them: dlopen, dlclose, again and again, and a domain that outlives the
// dlclose of its registrar. The arguments are the registrars' libraries, the spdk one last: it
// takes the fabric's functions from its caller, so nothing else is needed here.
//
// Seen to die of SIGSEGV at the first registration without -z nodelete.
#include <dlfcn.h>
#include <rdmalloc/registrar_spdk.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <string>

namespace {

int registered = 0, unregistered = 0;

void require(bool holds, const char* what) {
  if (holds) return;
  printf("not so: %s (%s)\n", what, dlerror());
  exit(1);
}

// "…/librdmalloc-NAME.so" to rdmalloc_domain_open_NAME.
void* open_function(void* library, const std::string& path) {
  std::size_t begin = path.rfind("rdmalloc-") + strlen("rdmalloc-");
  std::string name = path.substr(begin, path.find('.', begin) - begin);
  return dlsym(library, ("rdmalloc_domain_open_" + name).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  void* function = nullptr;
  for (int i = 1; i < argc; ++i) {
    for (int round = 0; round < 50; ++round) {
      void* library = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
      require(library != nullptr, argv[i]);
      function = open_function(library, argv[i]);
      require(function != nullptr, "it has its function");
      require(dlclose(library) == 0, "it can be closed");
    }
  }
  rdmalloc_spdk_attr attr = {};
  attr.size = sizeof attr;
  attr.mem_register = [](void*, std::size_t) { return ++registered, 0; };
  attr.mem_unregister = [](void*, std::size_t) { return ++unregistered, 0; };
  rdmalloc_domain* domain = nullptr;
  auto* open = reinterpret_cast<decltype(&rdmalloc_domain_open_spdk)>(function);
  require(open(&attr, nullptr, &domain) == 0, "a domain opens");
  void* block = malloc(8 << 20);
  rdmalloc_reg* reg = nullptr;
  require(rdmalloc_reg_get(domain, block, 8 << 20, RDMALLOC_ACCESS_LOCAL, &reg) == 0, "a get");
  require(registered >= 4, "registered by 2 MiB");
  rdmalloc_reg_put(reg);
  free(block);
  rdmalloc_purge(0);
  require(unregistered == registered, "the purge unregistered");
  require(rdmalloc_domain_close(domain) == 0, "the domain closes");
  puts("ok");
  return 0;
}
