# The same sources, three libraries:
#   rdmalloc           librdmalloc.so, overrides malloc; links libc and nothing else
#   rdmalloc_static    librdmalloc.a, the same to link statically
#   rdmalloc_prefixed  overrides nothing: rdmalloc_malloc and relatives only (tests, sanitizers)
# They differ in the few files that ask for RDMALLOC_OVERRIDE; the others are compiled once for all.
get_property(sources GLOBAL PROPERTY RDMALLOC_SOURCES)
get_property(overriding GLOBAL PROPERTY RDMALLOC_OVERRIDING_SOURCES)
list(REMOVE_ITEM sources ${overriding})
list(SORT sources)  # the library is the same in whichever order the folders come
foreach(source ${sources})
  file(STRINGS ${source} asks REGEX RDMALLOC_OVERRIDE LIMIT_COUNT 1)
  if(asks)
    message(FATAL_ERROR "${source} asks for RDMALLOC_OVERRIDE, but is compiled without it: "
      "add it to RDMALLOC_OVERRIDING_SOURCES")
  endif()
endforeach()

# Jumps are padded where the fast paths are, the registration cache's too (options.cmake). Elsewhere that
# would cost a thirtieth of the code, and most programs have it resident.
foreach(source ${sources} ${overriding})
  if(source MATCHES "/(alloc/(api|cache|heaps)|regcache)/")
    set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS ${RDMALLOC_PADS_JUMPS})
  endif()
endforeach()

function(rdmalloc_objects name)
  add_library(${name} OBJECT ${ARGN})
  target_link_libraries(${name} PUBLIC rdmalloc_inside_malloc)
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
endfunction()

rdmalloc_objects(rdmalloc_common_objects ${sources})
# For order_of_code.ld. Not malloc.cc and its like, which go whole: apart, free() has a padding more.
target_compile_options(rdmalloc_common_objects PRIVATE -ffunction-sections -fdata-sections)
# Half the time of most of these files was <atomic>, of which C++20 makes 36,000 lines.
if(RDMALLOC_PRECOMPILE)
  target_precompile_headers(rdmalloc_common_objects PRIVATE <atomic>)
endif()
rdmalloc_objects(rdmalloc_prefixed_objects ${overriding})
target_compile_definitions(rdmalloc_prefixed_objects PRIVATE RDMALLOC_OVERRIDE=0)
add_library(rdmalloc_prefixed STATIC $<TARGET_OBJECTS:rdmalloc_common_objects>
  $<TARGET_OBJECTS:rdmalloc_prefixed_objects>)
target_link_libraries(rdmalloc_prefixed PUBLIC rdmalloc_headers ${CMAKE_DL_LIBS} pthread)

if(NOT RDMALLOC_SANITIZE)
  rdmalloc_objects(rdmalloc_override_objects ${overriding})
  target_compile_definitions(rdmalloc_override_objects PRIVATE RDMALLOC_OVERRIDE=1)
  set(objects $<TARGET_OBJECTS:rdmalloc_common_objects> $<TARGET_OBJECTS:rdmalloc_override_objects>)
  file(GLOB preload CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/alloc/interpose/*.cc
       ${PROJECT_SOURCE_DIR}/regcache/interpose/*.cc)
  add_library(rdmalloc SHARED ${objects} ${preload})
  target_link_libraries(rdmalloc PRIVATE rdmalloc_inside_malloc)
  target_compile_options(rdmalloc PRIVATE -ffunction-sections -fdata-sections)
  add_library(rdmalloc_static STATIC ${objects})
  set_target_properties(rdmalloc_static PROPERTIES OUTPUT_NAME rdmalloc)
  # Linked as C: nothing of libstdc++ may creep in.
  set_target_properties(rdmalloc PROPERTIES LINKER_LANGUAGE C SOVERSION 0)
  # Our calls of our own functions need no look-up of each at every program's start. But what stands in
  # front of libc's and is called by us too is libc's where libc comes first (preload.linked_last), and realloc()
  # is the program's own where it has one (preload.own_malloc).
  set(looked_up ${PROJECT_BINARY_DIR}/rdmalloc.looked_up)
  file(CONFIGURE OUTPUT ${looked_up} CONTENT "{ dlopen; pthread_create; realloc; };\n")
  target_link_options(rdmalloc PRIVATE -Wl,-Bsymbolic-functions,--dynamic-list=${looked_up})
  # Code and constants in the same mappings, as linkers made them before 2018: two mmap() and three page
  # faults less at each program's start.
  target_link_options(rdmalloc PRIVATE -Wl,-z,noseparate-code)
  # What every program runs lies together, what few run behind all else, where the linker knows how (GNU ld
  # and its like).
  include(CheckLinkerFlag)
  set(order_of_code ${CMAKE_CURRENT_LIST_DIR}/order_of_code.ld)
  check_linker_flag(C -Wl,-T,${order_of_code} RDMALLOC_LINKER_INSERTS)
  if(RDMALLOC_LINKER_INSERTS)
    target_link_options(rdmalloc PRIVATE -Wl,-T,${order_of_code})
    set_property(TARGET rdmalloc APPEND PROPERTY LINK_DEPENDS ${order_of_code})
  endif()
  # What the loader adds its address to stands in 168 bytes and not in 20 KiB, which it reads. libc
  # knows that since 2.36.
  include(CheckCSourceCompiles)
  check_c_source_compiles("#include <features.h>\n#if !__GLIBC_PREREQ(2, 36)\n#error\n#endif\nint main(void) { return 0; }"
                          RDMALLOC_LIBC_UNPACKS_RELOCATIONS)
  check_linker_flag(C -Wl,-z,pack-relative-relocs RDMALLOC_LINKER_PACKS_RELOCATIONS)
  if(RDMALLOC_LIBC_UNPACKS_RELOCATIONS AND RDMALLOC_LINKER_PACKS_RELOCATIONS)
    target_link_options(rdmalloc PRIVATE -Wl,-z,pack-relative-relocs)
  endif()
  # nodelete: blocks and threads outlive any dlclose.
  target_link_options(rdmalloc PRIVATE -Wl,-z,defs,-z,now,-z,nodelete)
  # libc's first version, for the functions that stand in front of libc's (regcache/interpose/in_front_of.h),
  # and the one that process_madvise came with. Our own functions have ours (docs/versions.md).
  set(libc_version GLIBC_2.2.5)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
    set(libc_version GLIBC_2.17)
  endif()
  set(versions ${PROJECT_BINARY_DIR}/rdmalloc.map)
  file(CONFIGURE OUTPUT ${versions}
    CONTENT "@libc_version@ { local: rdmalloc_in_front_of_*; };\nGLIBC_2.36 { } @libc_version@;\nRDMALLOC_0 { rdmalloc_init; rdmalloc_invalidate; rdmalloc_[!i]*; };\n" @ONLY)
  target_link_options(rdmalloc PRIVATE -Wl,--version-script=${versions})
  set_property(TARGET rdmalloc APPEND PROPERTY LINK_DEPENDS ${versions})
  target_link_libraries(rdmalloc PUBLIC rdmalloc_headers)
  target_link_libraries(rdmalloc_static PUBLIC rdmalloc_headers ${CMAKE_DL_LIBS} pthread)
  # For a program that calls no function of ours, and malloc from libc's code or after link-time optimisation only.
  target_link_options(rdmalloc_static INTERFACE LINKER:-u,malloc)
endif()
