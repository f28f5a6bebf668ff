# LibTorch from an installed torch package, through an imported target of our own: torch's CMake files
# insist on a CUDA toolkit and probe for a GPU, and neither is needed to compile against its headers.
# The folder is ARTESIAN_TORCH_DIR (cache or environment), else that of the python3 on PATH.
if(NOT ARTESIAN_TORCH_DIR AND DEFINED ENV{ARTESIAN_TORCH_DIR})
  set(ARTESIAN_TORCH_DIR $ENV{ARTESIAN_TORCH_DIR} CACHE PATH "" FORCE)
endif()
if(NOT ARTESIAN_TORCH_DIR)
  execute_process(
    COMMAND python3 -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE torch_dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  set(ARTESIAN_TORCH_DIR "${torch_dir}" CACHE PATH "" FORCE)
endif()
if(NOT EXISTS ${ARTESIAN_TORCH_DIR}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "No LibTorch at \"${ARTESIAN_TORCH_DIR}\": set ARTESIAN_TORCH_DIR to the folder "
    "of an installed torch package (2.11 to 2.15), run `make build`, which installs one, or configure "
    "with -DARTESIAN_TORCH=OFF to build the layers below zero3/ alone.")
endif()

find_package(OpenMP REQUIRED COMPONENTS CXX)
add_library(artesian_torch INTERFACE)
target_include_directories(artesian_torch SYSTEM INTERFACE
  ${ARTESIAN_TORCH_DIR}/include ${ARTESIAN_TORCH_DIR}/include/torch/csrc/api/include)
# -fopenmp makes at::parallel_for parallel in our files; at run time there is one libgomp, torch's.
target_compile_options(artesian_torch INTERFACE -fopenmp)
target_link_libraries(artesian_torch INTERFACE
  -Wl,--no-as-needed ${ARTESIAN_TORCH_DIR}/lib/libtorch_cpu.so ${ARTESIAN_TORCH_DIR}/lib/libc10.so
  -Wl,--as-needed ${ARTESIAN_TORCH_DIR}/lib/libgomp.so.1)
set(CMAKE_BUILD_RPATH ${ARTESIAN_TORCH_DIR}/lib)
set(CMAKE_INSTALL_RPATH ${ARTESIAN_TORCH_DIR}/lib)
