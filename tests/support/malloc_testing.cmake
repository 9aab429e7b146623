# rdmalloc_malloc_test(source.cc [STANDARD_NAMES_ONLY | PREFIXED_ONLY] [TIMEOUT seconds] [VARIANTS builds...])
#
# A test of the malloc family, written against tests/support/alloc_under_test.h and built twice: over
# the prefixed library (all variants), and with the standard names, to be run as a whole under the
# preloaded library, which is then the malloc of the test program too.
include_guard(GLOBAL)

function(rdmalloc_malloc_test source)
  cmake_parse_arguments(PARSE_ARGV 1 arg "STANDARD_NAMES_ONLY;PREFIXED_ONLY" "TIMEOUT" "VARIANTS")
  get_filename_component(name ${source} NAME_WE)
  if(NOT arg_STANDARD_NAMES_ONLY)
    rdmalloc_gtest(${name} ${source} LIBRARIES rdmalloc_test_process TIMEOUT ${arg_TIMEOUT}
      VARIANTS ${arg_VARIANTS})
    if(TARGET ${name})
      target_compile_definitions(${name} PRIVATE RDMALLOC_TEST_PREFIXED=1)
      target_compile_options(${name} PRIVATE -fno-builtin)
    endif()
  endif()
  if(TARGET rdmalloc AND NOT arg_PREFIXED_ONLY)
    set(program ${name}_preload)
    add_executable(${program} ${source})
    target_compile_definitions(${program} PRIVATE RDMALLOC_TEST_PREFIXED=0
      $<$<BOOL:${RDMALLOC_CHECKED}>:RDMALLOC_CHECKED=1>)
    target_compile_options(${program} PRIVATE -fno-builtin)
    target_link_libraries(${program} PRIVATE rdmalloc_headers rdmalloc_test_process
      GTest::gtest_main Threads::Threads ${CMAKE_DL_LIBS})
    rdmalloc_precompiled(rdmalloc_test_headers_no_builtin ${program})
    add_dependencies(${program} rdmalloc)
    rdmalloc_test(NAME preload.${name} COMMAND ${program} PRELOAD TIMEOUT ${arg_TIMEOUT}
      VARIANTS release checked)
  endif()
endfunction()
