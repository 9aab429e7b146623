# Headers of others that take longer to parse than most of our files take to compile, parsed once for
# all files that include them:
#
#   rdmalloc_precompile(name header... LIBRARIES target... [OPTIONS option...])
#   rdmalloc_precompiled(name target...)   for TARGETs that are compiled with the same options
#
# And the sources of such a target are read together, eight as one: what GoogleTest's and nlohmann-json's
# templates become is made once for them, which was half of their time. Names of anonymous namespaces are
# one file's no longer; a source that shares none says SKIP_UNITY_BUILD_INCLUSION.
#
# Not CLI/CLI.hpp, whose constants of namespaces are code in each file that has it: 4 s of compiling.
#
# So many headers make g++ look for garbage of its own, which it does from 128 MiB on, for a seventh of its time.
# There is little: it may wait for 1 GiB. The code is the same.
#
# A file still includes what it uses: RDMALLOC_PRECOMPILE=OFF (the preset `debug`) compiles it alone.
option(RDMALLOC_PRECOMPILE "Parse the headers of GoogleTest, fmt and nlohmann-json once for many files" ON)

function(rdmalloc_precompile name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "LIBRARIES;OPTIONS")
  if(NOT RDMALLOC_PRECOMPILE)
    return()
  endif()
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${name}.cc)
  file(CONFIGURE OUTPUT ${source} CONTENT "// @name@: see cmake/precompiled.cmake\n")
  add_library(${name} OBJECT ${source})
  target_link_libraries(${name} PRIVATE ${arg_LIBRARIES})
  target_compile_options(${name} PRIVATE ${arg_OPTIONS})
  target_precompile_headers(${name} PRIVATE ${arg_UNPARSED_ARGUMENTS})
endfunction()

function(rdmalloc_precompiled name)
  if(RDMALLOC_PRECOMPILE)
    foreach(target ${ARGN})
      target_precompile_headers(${target} REUSE_FROM ${name})
      target_compile_options(${target} PRIVATE
        $<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=1048576>)
      get_target_property(sources ${target} SOURCES)
      list(LENGTH sources count)
      if(count GREATER 1)
        set_target_properties(${target} PROPERTIES UNITY_BUILD ON)
      endif()
    endforeach()
  endif()
endfunction()
