# One library per layer; a layer links only layers below it. Sources are found by name: adding a file
# to a layer's folder is all that is needed.
#
# What a user of an installed layer gets is its headers and its libraries; our own compile flags
# (artesian_flags) stay in the build. cmake/install.cmake installs the layers.
find_package(Threads REQUIRED)
find_package(nlohmann_json REQUIRED)
include(cmake/libraries.cmake)
artesian_find_library(fmt fmt fmt/core.h)
artesian_find_library(libaio aio libaio.h)
artesian_find_library(uring uring liburing.h)
artesian_find_library(hwy hwy hwy/highway.h)
artesian_find_library(xxhash xxhash xxhash.h)
if(artesian_missing_library)
  message(FATAL_ERROR "Cannot find ${artesian_missing_library}.")
endif()

add_library(artesian_flags INTERFACE)
set(werror "")
if(ARTESIAN_WARNINGS_AS_ERRORS)
  set(werror -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL Clang)
  # Clang means more by -Wconversion (each change of sign), and its builds are for fuzzing alone.
  target_compile_options(artesian_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow ${werror} -ffp-contract=off>)
else()
  # Of sources compiled as one, a local name may be that of another's function, and a type of one
  # source stands in what looks like a header.
  set(shadow $<IF:$<BOOL:$<TARGET_PROPERTY:UNITY_BUILD>>,-Wshadow=local;-Wno-subobject-linkage,-Wshadow>)
  # -Wno-restrict: g++ 12 warns falsely about "text" + std::string (GCC bug 105651).
  target_compile_options(artesian_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wconversion ${shadow} ${werror} -Wno-restrict -ffp-contract=off>)
endif()
target_include_directories(artesian_flags INTERFACE ${CMAKE_SOURCE_DIR})
if(ARTESIAN_SANITIZE)
  # UBSan only prints unless told not to recover, and a test would pass.
  target_compile_options(artesian_flags INTERFACE
    -fsanitize=${ARTESIAN_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
  target_link_options(artesian_flags INTERFACE -fsanitize=${ARTESIAN_SANITIZE})
endif()
if(ARTESIAN_FUZZ)
  target_compile_options(artesian_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# Messages are formatted with fmt, in sources only: no header of ours includes it, so what is built on an
# installed layer links it and need not include it. LibTorch brings headers of a version of its own,
# which come first where its headers are seen: what is compiled beside it takes no library.
function(artesian_format_beside_torch target)
  target_compile_definitions(${target} PRIVATE FMT_HEADER_ONLY)
endfunction()

# artesian_joined(target): compiles several of its sources as one, since most of a source's time goes
# into headers that its neighbours include as well. Names in a namespace without a name must
# therefore differ within a library. -DARTESIAN_JOINED=OFF compiles each by itself. Joined sources
# name their parts by paths that do not depend on the checkout, so that ccache serves several of them.
set(joined OFF)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  set(joined ON)
endif()
option(ARTESIAN_JOINED "Compile several sources of a library as one" ${joined})
function(artesian_joined target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${ARTESIAN_JOINED} UNITY_BUILD_BATCH_SIZE 8
    UNITY_BUILD_RELOCATABLE ON)
endfunction()

# artesian_layer(name [DEPENDS layers...] [LIBRARIES third-party...] [EXCLUDE files...] [FILES files...])
function(artesian_layer name)
  cmake_parse_arguments(ARG "" "" "DEPENDS;LIBRARIES;EXCLUDE;FILES" ${ARGN})
  if(NOT ARG_FILES)
    set(ARG_FILES *.cpp)
  endif()
  list(TRANSFORM ARG_FILES PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  file(GLOB sources CONFIGURE_DEPENDS ${ARG_FILES})
  foreach(file ${ARG_EXCLUDE})
    list(REMOVE_ITEM sources ${CMAKE_CURRENT_SOURCE_DIR}/${file})
  endforeach()
  list(TRANSFORM ARG_DEPENDS PREPEND artesian_)
  if(sources)
    add_library(artesian_${name} STATIC ${sources})
    target_link_libraries(artesian_${name} PRIVATE artesian::fmt)
    artesian_joined(artesian_${name})
    set(scope PUBLIC)
  else()
    add_library(artesian_${name} INTERFACE)  # headers only
    set(scope INTERFACE)
  endif()
  target_compile_features(artesian_${name} ${scope} cxx_std_20)  # of the headers, too
  target_include_directories(artesian_${name} ${scope}
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/artesian>)
  target_link_libraries(artesian_${name} ${scope} $<BUILD_INTERFACE:artesian_flags> ${ARG_DEPENDS}
    ${ARG_LIBRARIES})
endfunction()

# After which a test program counts as hung, by the clock. Under a sanitizer it may be fifty times
# slower, and on a busy machine as much again.
set(artesian_test_seconds 600)
if(ARTESIAN_SANITIZE)
  set(artesian_test_seconds 7200)
endif()

# artesian_tests(folder LIBRARIES ... [LABELS ...]): one program per x_test.cpp of the folder, named
# a_b_x_test for tests/a/b/x_test.cpp; for ctest it is a/b/x_test.
#
# Tests spend their time in what they test: -O1 compiles them in two thirds of the time.
function(artesian_tests folder)
  cmake_parse_arguments(ARG "" "" "LIBRARIES;LABELS;EXCLUDE;FILES" ${ARGN})
  if(NOT ARG_FILES)
    set(ARG_FILES *_test.cpp)
  endif()
  list(TRANSFORM ARG_FILES PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/)
  file(GLOB sources CONFIGURE_DEPENDS ${ARG_FILES})
  foreach(file ${ARG_EXCLUDE})
    list(REMOVE_ITEM sources ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/${file})
  endforeach()
  string(REPLACE / _ prefix ${folder})
  foreach(source ${sources})
    get_filename_component(stem ${source} NAME_WE)
    set(program ${prefix}_${stem})
    add_executable(${program} ${source})
    target_link_libraries(${program} PRIVATE ${ARG_LIBRARIES} GTest::gtest_main)
    target_compile_options(${program} PRIVATE $<$<CONFIG:Release>:-O1>)
    set_target_properties(${program} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
    add_test(NAME ${folder}/${stem} COMMAND ${program})
    set_tests_properties(${folder}/${stem} PROPERTIES LABELS "${ARG_LABELS}"
      TIMEOUT ${artesian_test_seconds} SKIP_RETURN_CODE 77)
  endforeach()
endfunction()

# artesian_fuzzers(folder LIBRARIES ...): one program per x_fuzz.cpp of the folder. With ARTESIAN_FUZZ
# it is libFuzzer's, in fuzz/, built by the target `fuzzers`; without, any compiler builds it, and it
# runs the kept corpus, corpus/x/ beside it, as the fast test folder/x_fuzz.
function(artesian_fuzzers folder)
  cmake_parse_arguments(ARG "" "" "LIBRARIES" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*_fuzz.cpp)
  string(REPLACE / _ prefix ${folder})
  foreach(source ${sources})
    get_filename_component(stem ${source} NAME_WE)
    string(REGEX REPLACE "_fuzz$" "" subject ${stem})
    set(program ${prefix}_${stem})
    if(ARTESIAN_FUZZ)
      add_executable(${program} EXCLUDE_FROM_ALL ${source})
      target_link_options(${program} PRIVATE -fsanitize=fuzzer)
      set_target_properties(${program} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
      if(NOT TARGET fuzzers)
        add_custom_target(fuzzers)
      endif()
      add_dependencies(fuzzers ${program})
    else()
      add_executable(${program} ${source} ${CMAKE_CURRENT_SOURCE_DIR}/support/replay_corpus.cpp)
      set_target_properties(${program} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
      add_test(NAME ${folder}/${stem}
        COMMAND ${program} ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/corpus/${subject})
      set_tests_properties(${folder}/${stem} PROPERTIES LABELS "fast;fuzz"
        TIMEOUT ${artesian_test_seconds})
    endif()
    target_link_libraries(${program} PRIVATE ${ARG_LIBRARIES})
  endforeach()
endfunction()
