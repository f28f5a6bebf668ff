// Functions with which each source file adds its part to the Python module.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace artesian::python {

void bind_config(py::module_& module);
void bind_engine(py::module_& module);
void bind_group(py::module_& module);

}  // namespace artesian::python
