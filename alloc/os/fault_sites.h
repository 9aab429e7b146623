// Every place where a call that we make can fail: the name for RDMALLOC_FAULT, and what the call
// is. One table, since names must be known when the environment is read, and registrars are
// libraries that may be loaded later. tests/structure/rules_test.py holds it to the code, both
// ways.
#pragma once

// clang-format off
#define RDMALLOC_FAULT_SITES(SITE)                                                                 \
  /* memory, alloc/os/os.cc */                                                                     \
  SITE(kReserve, "reserve", "mmap of address space: the arena, arrays beside it")                  \
  SITE(kUnreserve, "unreserve", "munmap of address space that is not needed after all")            \
  SITE(kCommit, "commit", "mprotect that makes reserved pages usable")                             \
  SITE(kMapMetadata, "map_metadata", "mmap of memory for tables, records and stacks")              \
  SITE(kWipeOnFork, "wipe_on_fork", "MADV_WIPEONFORK on what a child must find empty")             \
  SITE(kAdviseHuge, "advise_huge", "MADV_HUGEPAGE")                                                \
  SITE(kAdviseSmall, "advise_small", "MADV_NOHUGEPAGE")                                            \
  SITE(kResident, "resident", "mincore: which pages the program has touched")                      \
  SITE(kDecommit, "decommit", "MADV_DONTNEED: pages go back to the kernel")                        \
  SITE(kPopulate, "populate", "MADV_POPULATE_WRITE: pages are backed at once")                     \
  SITE(kBindNode, "bind_node", "mbind of a heap's region to a NUMA node")                          \
  SITE(kUnbindNode, "unbind_node", "the end of that")                                              \
  SITE(kMapHuge, "map_huge", "mmap of pages of the kernel's pool of 2 MiB or 1 GiB")               \
  SITE(kMoveHuge, "move_huge", "mremap of them to their place")                                    \
  SITE(kReserveOver, "reserve_over", "mmap over pages of another size, which go")                  \
  /* waiting, files, what the machine is like */                                                   \
  SITE(kFutexWait, "futex_wait", "a wait that ends early, as by a signal")                         \
  SITE(kBarrier, "barrier", "membarrier, before memory is taken from caches of idle threads")      \
  SITE(kWrite, "write", "write of a message or of statistics")                                     \
  SITE(kOpenFile, "open_file", "open of a file in /proc or /sys")                                  \
  SITE(kReadFile, "read_file", "read of one")                                                      \
  SITE(kMakeFile, "make_file", "open of a file for statistics")                                    \
  SITE(kCurrentFolder, "current_folder", "getcwd, for its name")                                   \
  SITE(kListFiles, "list_files", "getdents of the open descriptors, for a checkpoint")             \
  SITE(kReadLink, "read_link", "readlink of one")                                                  \
  SITE(kMoveDescriptor, "move_descriptor", "fcntl that gives a descriptor a high number")          \
  SITE(kOwnDescriptors, "own_descriptors", "close_range that gives a thread its own descriptors")  \
  SITE(kMemorySize, "memory_size", "sysinfo")                                                      \
  SITE(kReadLimit, "read_limit", "prlimit of RLIMIT_AS or RLIMIT_MEMLOCK")                         \
  SITE(kReadCapabilities, "read_capabilities", "capget: may we lock without a limit")              \
  SITE(kReadAffinity, "read_affinity", "sched_getaffinity")                                        \
  /* userfaultfd (RDMALLOC_FOREIGN=watch), alloc/os/userfault.cc */                                \
  SITE(kUserfault, "userfault", "userfaultfd")                                                     \
  SITE(kUserfaultFeatures, "userfault_features", "UFFDIO_API: the events that we need")            \
  SITE(kUserfaultRegister, "userfault_register", "UFFDIO_REGISTER of foreign memory")              \
  SITE(kUserfaultUnregister, "userfault_unregister", "UFFDIO_UNREGISTER")                          \
  SITE(kUserfaultSettled, "userfault_settled", "the question whether anything is changing")        \
  SITE(kUserfaultOrder, "userfault_order", "the answer while a page is being unmapped, at start")  \
  SITE(kUserfaultWait, "userfault_wait", "ppoll for events")                                       \
  SITE(kUserfaultRead, "userfault_read", "read of events")                                         \
  SITE(kQueryMapping, "query_mapping", "PROCMAP_QUERY: which kind of memory it is")                \
  SITE(kEventOpen, "event_open", "eventfd")                                                        \
  /* libc */                                                                                       \
  SITE(kThreadCreate, "thread_create", "pthread_create of the purge thread or a helper")           \
  SITE(kThreadKey, "thread_key", "pthread_key_create: hearing of threads' ends")                   \
  SITE(kForkHandler, "fork_handler", "pthread_atfork")                                             \
  SITE(kExitHandler, "exit_handler", "atexit")                                                     \
  SITE(kWaitRequest, "wait_request", "sigtimedwait for `rdmalloc checkpoint`, which ends early")   \
  SITE(kOpenLibrary, "open_library", "dlopen of a fabric library that is loaded")                  \
  SITE(kFindFunction, "find_function", "dlsym")                                                    \
  /* others' code that we call */                                                                  \
  SITE(kPurgeEvent, "purge_event", "an observer of page events, asked before a purge")             \
  SITE(kImportMonitor, "import_monitor", "libfabric takes our memory monitor")                     \
  SITE(kCloseMonitor, "close_monitor", "libfabric gives it up")                                    \
  SITE(kDomainEvent, "domain_event", "a domain's event: PREPARE, CLOSE or OPEN of a checkpoint")    \
  SITE(kDomainQuiesce, "domain_quiesce", "a registrar, any: closing its device for a checkpoint")  \
  SITE(kDomainResume, "domain_resume", "a registrar, any: opening it again")                       \
  SITE(kRegister, "register", "a registrar, any: registering a range")                             \
  SITE(kRegisterUndo, "register_undo", "a registrar that fails half-way and can not undo it")        \
  SITE(kDeregister, "deregister", "a registrar, any: deregistering one")                           \
  /* the calls that registrars make, regcache/registrars and regcache/verbs_shim */                \
  SITE(kRegistrarMemory, "registrar_memory", "malloc of a registrar's own")                        \
  SITE(kRegistrarProbe, "registrar_probe", "read of VmPin: does the fabric let memory go")         \
  SITE(kMlock, "mlock", "mlock")                                                                   \
  SITE(kMunlock, "munlock", "munlock")                                                             \
  SITE(kUringSetup, "uring_setup", "io_uring_setup")                                               \
  SITE(kUringTable, "uring_table", "io_uring_register of an empty table of buffers")               \
  SITE(kUringRegister, "uring_register", "io_uring_register of one buffer")                        \
  SITE(kUringRemove, "uring_remove", "the removal of one")                                         \
  SITE(kUringWait, "uring_wait", "the wait for its end")                                           \
  SITE(kVerbsDevice, "verbs_device", "ibv_get_device_list, ibv_open_device")                       \
  SITE(kVerbsQuery, "verbs_query", "ibv_query_device, ibv_query_port")                             \
  SITE(kVerbsPd, "verbs_pd", "ibv_alloc_pd")                                                       \
  SITE(kVerbsRegister, "verbs_register", "ibv_reg_mr")                                             \
  SITE(kVerbsDeregister, "verbs_deregister", "ibv_dereg_mr")                                       \
  SITE(kLibfabricRegister, "libfabric_register", "fi_mr_regattr")                                  \
  SITE(kLibfabricDeregister, "libfabric_deregister", "fi_close of an MR")                          \
  SITE(kUcxRegister, "ucx_register", "ucp_mem_map")                                                \
  SITE(kUcxDeregister, "ucx_deregister", "ucp_mem_unmap")                                          \
  SITE(kUcxQuery, "ucx_query", "ucp_mem_query, ucp_context_query")                                 \
  SITE(kUcxPack, "ucx_pack", "ucp_rkey_pack")                                                      \
  SITE(kDpdkRegister, "dpdk_register", "rte_extmem_register")                                      \
  SITE(kDpdkUnregister, "dpdk_unregister", "rte_extmem_unregister")                                \
  SITE(kDpdkMap, "dpdk_map", "rte_dev_dma_map")                                                    \
  SITE(kDpdkUnmap, "dpdk_unmap", "rte_dev_dma_unmap")                                              \
  SITE(kSpdkFind, "spdk_find", "dlsym of SPDK's functions")                                        \
  SITE(kSpdkRegister, "spdk_register", "spdk_mem_register")                                        \
  SITE(kSpdkUnregister, "spdk_unregister", "spdk_mem_unregister")
// clang-format on
