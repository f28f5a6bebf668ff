# LibTorch from an installed torch package, through an imported target of our own, artesian::torch:
# torch's CMake files insist on a CUDA toolkit and probe for a GPU, and neither is needed to compile
# against its headers. The folder is ARTESIAN_TORCH_DIR or artesian_TORCH_DIR (cache or environment),
# else the one that the installed libraries were built with, that of ARTESIAN_PYTHON or of the python3 on
# PATH, or that of the environment that dev/setup.sh makes. Also installed, and included by artesian-config.cmake; leaves in
# artesian_torch_error what is wrong, or nothing.
set(artesian_torch_error "")
set(ARTESIAN_TORCH_DIR "${ARTESIAN_TORCH_DIR}" CACHE PATH
  "Folder of the installed torch package (the one with lib/ and include/)")
foreach(candidate "${artesian_TORCH_DIR}" "$ENV{ARTESIAN_TORCH_DIR}" "$ENV{artesian_TORCH_DIR}")
  if(NOT ARTESIAN_TORCH_DIR AND candidate)
    set(ARTESIAN_TORCH_DIR "${candidate}" CACHE PATH "" FORCE)
  endif()
endforeach()
include(${CMAKE_CURRENT_LIST_DIR}/built_with.cmake OPTIONAL)
if(NOT ARTESIAN_TORCH_DIR AND EXISTS "${artesian_built_with_torch}/lib/libtorch_cpu.so")
  set(ARTESIAN_TORCH_DIR "${artesian_built_with_torch}" CACHE PATH "" FORCE)
endif()
if(NOT ARTESIAN_TORCH_DIR)
  set(torch_finder python3)
  if(ARTESIAN_PYTHON)
    set(torch_finder ${ARTESIAN_PYTHON})
  endif()
  execute_process(
    COMMAND ${torch_finder} -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE torch_dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  set(ARTESIAN_TORCH_DIR "${torch_dir}" CACHE PATH "" FORCE)
endif()
if(NOT ARTESIAN_TORCH_DIR)
  set(artesian_cache "$ENV{XDG_CACHE_HOME}")
  if(NOT artesian_cache)
    set(artesian_cache "$ENV{HOME}/.cache")
  endif()
  file(GLOB artesian_environments "${artesian_cache}/artesian/env-*/complete")
  foreach(complete ${artesian_environments})
    get_filename_component(environment ${complete} DIRECTORY)
    file(GLOB torch_dir "${environment}/lib/python3*/site-packages/torch")
    if(torch_dir AND EXISTS "${torch_dir}/lib/libtorch_cpu.so")
      set(ARTESIAN_TORCH_DIR "${torch_dir}" CACHE PATH "" FORCE)
    endif()
  endforeach()
endif()

if(NOT EXISTS "${ARTESIAN_TORCH_DIR}/lib/libtorch_cpu.so")
  if(ARTESIAN_TORCH_DIR)
    set(artesian_torch_error "No LibTorch at \"${ARTESIAN_TORCH_DIR}\"")
  else()
    set(artesian_torch_error "No LibTorch: neither the python3 on PATH nor the environment that \
dev/setup.sh makes (~/.cache/artesian/env-*) has torch")
  endif()
  string(APPEND artesian_torch_error ": set ARTESIAN_TORCH_DIR to the folder of an installed torch \
package (2.11 to 2.15), for instance -DARTESIAN_TORCH_DIR=$(python3 -c 'import torch, os; \
print(os.path.dirname(torch.__file__))')")
elseif(NOT TARGET artesian::torch)
  add_library(artesian::torch INTERFACE IMPORTED GLOBAL)
  # -fopenmp makes at::parallel_for parallel in our files; at run time there is one libgomp, torch's.
  set_target_properties(artesian::torch PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES
      "${ARTESIAN_TORCH_DIR}/include;${ARTESIAN_TORCH_DIR}/include/torch/csrc/api/include"
    INTERFACE_COMPILE_OPTIONS "$<$<COMPILE_LANGUAGE:CXX>:-fopenmp>")
  target_link_libraries(artesian::torch INTERFACE
    -Wl,--no-as-needed ${ARTESIAN_TORCH_DIR}/lib/libtorch_cpu.so ${ARTESIAN_TORCH_DIR}/lib/libc10.so
    -Wl,--as-needed ${ARTESIAN_TORCH_DIR}/lib/libgomp.so.1)
endif()
