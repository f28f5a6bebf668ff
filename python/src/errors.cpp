#include "python/src/errors.h"

namespace artesian::python {

void raise(const Error& error) {
  const py::object made = py::module_::import("artesian.errors")
                              .attr("make")(error_code_name(error.code), error.message,
                                            error.to_string(), error.file, error.offset);
  PyErr_SetObject(py::type::of(made).ptr(), made.ptr());
  throw py::error_already_set();
}

}  // namespace artesian::python
