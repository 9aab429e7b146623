# Headers of others that take longer to parse than most of our files take to compile, parsed once for
# all files that include them:
#
#   rdmalloc_precompile(name header... LIBRARIES target... [OPTIONS option...])
#   rdmalloc_precompiled(name target...)   for TARGETs that are compiled with the same options
#
# Not CLI/CLI.hpp, whose constants of namespaces are code in each file that has it: 4 s of compiling.
#
# A file still includes what it uses: RDMALLOC_PRECOMPILE=OFF (the preset `debug`) compiles it alone.
option(RDMALLOC_PRECOMPILE "Parse the headers of GoogleTest, fmt and nlohmann-json once" ON)

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
    endforeach()
  endif()
endfunction()
