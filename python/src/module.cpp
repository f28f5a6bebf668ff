// The module artesian._C: the engine for Python, a thin layer over zero3/torch/hooked_engine.h. It
// only converts values and errors.
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/log.h"
#include "python/src/bind.h"
#include "python/src/errors.h"

namespace artesian::python {
namespace {

void set_sink(LogSink sink) {
  // Another thread may be running the former function, and need the GIL.
  const py::gil_scoped_release released;
  set_log_sink(std::move(sink));
}

/// Sends log lines to a Python function (level, line) or, with None, to stderr again. When it
/// returns, no thread runs the former function.
void set_log(const py::object& target) {
  if (target.is_none()) return set_sink({});
  // The last owner may be any thread, possibly without the GIL, which is needed to release the
  // function.
  const auto drop = [](py::object* object) {
    const py::gil_scoped_acquire acquired;
    delete object;
  };
  const std::shared_ptr<py::object> function(new py::object(target), drop);
  set_sink([function](LogLevel level, std::string_view line) {
    const py::gil_scoped_acquire acquired;
    try {
      (*function)(static_cast<int>(level), std::string(line));
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("artesian log");
    }
  });
}

/// A value for each thread, protected by the GIL. torch.compile cannot trace into it; it would
/// treat the values of a threading.local as constants.
class ThreadLocal {
 public:
  explicit ThreadLocal(py::object initial) : initial_(std::move(initial)) {}
  py::object get() const {
    const auto found = values_.find(std::this_thread::get_id());
    return found == values_.end() ? initial_ : found->second;
  }
  void set(py::object value) { values_[std::this_thread::get_id()] = std::move(value); }

 private:
  py::object initial_;
  std::unordered_map<std::thread::id, py::object> values_;
};

}  // namespace
}  // namespace artesian::python

PYBIND11_MODULE(_C, module) {
  module.doc() = "Artesian's engine; use the package artesian.";
  module.def("set_log", &artesian::python::set_log, py::arg("target"));
  namespace py = pybind11;
  using artesian::python::ThreadLocal;
  py::class_<ThreadLocal>(module, "ThreadLocal")
      .def(py::init<py::object>(), py::arg("initial"))
      .def("get", &ThreadLocal::get)
      .def("set", &ThreadLocal::set, py::arg("value"));
  artesian::python::bind_config(module);
  artesian::python::bind_group(module);
  artesian::python::bind_engine(module);
}
