// What the module's files add to it.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace artesian::python {

void bind_config(py::module_& module);
void bind_engine(py::module_& module);
void bind_group(py::module_& module);

}  // namespace artesian::python
