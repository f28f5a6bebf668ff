#include "tools/train/step_log.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/units.h"
#include "tools/shell/print.h"

namespace artesian::tools {
namespace {

constexpr std::uint64_t print_interval_ns = 5'000'000'000;

Error io_error(const std::string& path) {
  const ErrorCode code = errno == ENOSPC ? ErrorCode::NoSpace : ErrorCode::Io;
  return Error{
      .code = code, .system_error = errno, .message = "--log-jsonl: cannot write", .file = path};
}

double rate(double amount, double seconds) {
  return seconds > 0 ? amount / seconds : 0.0;
}

std::string held_out_text(double loss) {
  return tools::print("held-out loss %.4f (perplexity %.4g)", loss, std::exp(loss));
}

std::string duration(double seconds) {
  const auto whole = std::lround(seconds);
  if (whole >= 3600) return tools::print("%ldh%02ldm", whole / 3600, whole / 60 % 60);
  return tools::print("%ldm%02lds", whole / 60, whole % 60);
}

}  // namespace

Result<StepLog> StepLog::open(const std::string& path, Begin begin) {
  StepLog step_log;
  step_log.path_ = path;
  if (path.empty()) return step_log;
  if (path == "-") {
    step_log.cuts_ = false;
    step_log.file_ = Descriptor(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3));
    if (step_log.file_.value() < 0) return io_error("stdout");
    return step_log;
  }
  const int how = begin == Begin::Anew ? O_TRUNC : O_APPEND;
  step_log.file_ = Descriptor(::open(path.c_str(), O_WRONLY | O_CREAT | how | O_CLOEXEC, 0666));
  if (step_log.file_.value() < 0) return io_error(path);
  struct stat status {};
  if (::fstat(step_log.file_.value(), &status) == 0 && S_ISREG(status.st_mode)) {
    step_log.size_ = static_cast<std::uint64_t>(status.st_size);
  }
  return step_log;
}

/// Writes the whole line or, if the file can be cut, nothing.
bool StepLog::append(const std::string& line) {
  std::size_t done = 0;
  while (done < line.size()) {
    const ssize_t count = ::write(file_.value(), line.data() + done, line.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) break;
    done += static_cast<std::size_t>(count);
  }
  if (done == line.size()) {
    size_ += done;
    return true;
  }
  const int reason = errno;
  const auto size = static_cast<off_t>(size_);
  if (cuts_ && done != 0 && ::ftruncate(file_.value(), size) == 0) {
    static_cast<void>(::lseek(file_.value(), size, SEEK_SET));
  }
  errno = reason;
  return false;
}

Result<void> StepLog::sync() noexcept {
  if (file_.value() < 0 || ::fdatasync(file_.value()) == 0) return {};
  if (errno == EINVAL || errno == EROFS) return {};  // a pipe or a terminal, which cannot be cut
  return io_error(path_);
}

Result<void> StepLog::close() {
  if (!first_.has_value()) return {};
  first_->message = fmt::format("--log-jsonl: cannot write {} of {} lines", missing_, lines_);
  return *first_;
}

void StepLog::write(const zero3::StepResult& r, const Beside& beside) {
  if (file_.value() < 0) return;
  nlohmann::ordered_json line{{"step", r.step},
                              {"loss", r.loss},
                              {"lr", r.lr},
                              {"loss_scale", r.loss_scale},
                              {"overflow", r.overflow},
                              {"grad_norm", r.grad_norm},
                              {"tokens", r.tokens},
                              {"tokens_per_s", rate(static_cast<double>(r.tokens), r.step_s)},
                              {"tflops", beside.tflops},
                              {"step_s", r.step_s},
                              {"predicted_step_s", r.predicted_step_s},
                              {"bound_step_s", std::max(r.computed_s, r.disk_s)},
                              {"bytes",
                               {{"nvme_read", r.bytes_nvme_read},
                                {"nvme_write", r.bytes_nvme_write},
                                {"h2d", r.bytes_h2d},
                                {"d2h", r.bytes_d2h}}},
                              {"fetch",
                               {{"demand", r.fetch_demand},
                                {"prefetched", r.fetch_prefetched},
                                {"reused", r.fetch_reused}}},
                              {"live_parameters_max", r.live_parameters_max},
                              {"peak",
                               {{"device", r.peak_device},
                                {"host", r.peak_host},
                                {"activations", r.peak_activations},
                                {"process_rss", r.peak_process_rss},
                                {"gradients", r.peak_gradients},
                                {"program", r.peak_program},
                                {"heap", r.peak_heap}}},
                              {"wait_s",
                               {{"param", r.wait_param_s},
                                {"grad", r.wait_grad_s},
                                {"optimizer", r.wait_optimizer_s},
                                {"input", r.wait_input_s}}},
                              {"time_s",
                               {{"forward", r.forward_s},
                                {"backward", r.backward_s},
                                {"gradients", r.gradient_s},
                                {"casts", r.cast_s},
                                {"optimizer", r.optimizer_s}}}};
  if (r.bytes_bus != 0) {
    line["bytes"]["bus"] = r.bytes_bus;
    line["wait_s"]["bus"] = r.bus_s;
    line["waited_for"] = r.waited_for;
  }
  for (const zero3::SwapPathUse& path : r.bytes_paths.paths) {
    line["bytes"]["paths"].push_back(
        {{"path", path.directory}, {"read", path.bytes_read}, {"write", path.bytes_written}});
  }
  if (!r.overflow_parameter.empty()) line["overflow_parameter"] = r.overflow_parameter;
  if (beside.held_out_loss.has_value()) line["eval_loss"] = *beside.held_out_loss;
  if (beside.digest.has_value()) line["digest"] = *beside.digest;
  ++lines_;
  last_line_ = line.dump() + "\n";
  if (append(last_line_)) return;
  ++missing_;
  if (first_.has_value()) return;
  first_ = io_error(path_);
  log(LogLevel::Warning, first_->to_string() + "; training goes on");
}

Progress::Progress(const Options& options) : options_(options), line_(STDERR_FILENO) {}

void Progress::initializing(std::uint64_t done, std::uint64_t total) {
  const int percent = static_cast<int>(done * 100 / total);
  if (options_.quiet || percent == percent_) return;
  percent_ = percent;
  if (line_.on_terminal() || percent == 100) {
    line_.draw({{tools::print("initialising the tiers: %d%%", percent)}});
  }
  if (percent == 100) finish();
}

void Progress::saving(std::uint64_t step, std::uint64_t done, std::uint64_t total) {
  const int percent = static_cast<int>(done * 100 / std::max<std::uint64_t>(total, 1));
  if (options_.quiet || !line_.on_terminal() || std::exchange(percent_, percent) == percent) return;
  line_.draw({{fmt::format("saving step {}: {}%", step, percent)}});
}

/// In a narrow terminal, progress and loss take precedence over speed.
std::vector<LineField> Progress::describe(const zero3::StepResult& r,
                                          const std::optional<double>& held_out_loss) const {
  enum Rank : int { Step, Loss, HeldOut, Left, Skipped, Speed, Scale, Nvme, Host, Device };
  std::vector<LineField> line;
  line.push_back({tools::print("step %llu/%llu", static_cast<unsigned long long>(r.step),
                               static_cast<unsigned long long>(options_.steps_total)),
                  Step});
  line.push_back({tools::print("loss %.4f", r.loss), Loss});
  if (held_out_loss.has_value()) line.push_back({held_out_text(*held_out_loss), HeldOut});
  line.push_back(
      {tools::print("%.0f tokens/s", rate(static_cast<double>(r.tokens), r.step_s)), Speed});
  if (r.loss_scale != 1.0) line.push_back({tools::print("scale %g", r.loss_scale), Scale});
  if (r.overflow) {
    line.push_back({std::isfinite(r.loss) ? "skipped: overflow in " + r.overflow_parameter
                                          : "skipped: the loss is not finite",
                    Skipped});
  }
  line.push_back({tools::print("nvme %.2f+%.2f GB/s",
                               rate(static_cast<double>(r.bytes_nvme_read), r.step_s) * 1e-9,
                               rate(static_cast<double>(r.bytes_nvme_write), r.step_s) * 1e-9),
                  Nvme});
  const auto share = [](std::uint64_t used, std::uint64_t budget) {
    return budget == 0 ? 0.0 : 100.0 * static_cast<double>(used) / static_cast<double>(budget);
  };
  line.push_back(
      {tools::print("device %.0f%%", share(r.peak_device, options_.budgets.device)), Device});
  line.push_back({tools::print("host %.0f%%", share(r.peak_host, options_.budgets.host)), Host});
  const auto left = static_cast<double>(options_.steps_total - r.step) * step_seconds_;
  line.push_back({"left " + duration(left), Left});
  return line;
}

void Progress::step(const zero3::StepResult& r, const std::optional<double>& held_out_loss) {
  if (options_.quiet) return;
  step_seconds_ = step_seconds_ == 0.0 ? r.step_s : 0.8 * step_seconds_ + 0.2 * r.step_s;
  const bool own_line = held_out_loss.has_value() ||
                        (options_.steps_per_print != 0 && r.step % options_.steps_per_print == 0);
  const std::uint64_t now = monotonic_ns();
  const bool due = now - printed_ns_ >= print_interval_ns || r.step == options_.steps_total;
  if (line_.on_terminal() || own_line || due) {
    line_.draw(describe(r, held_out_loss));
    printed_ns_ = now;
  }
  if (own_line && !options_.breakdown) finish();
  if (!options_.breakdown) return;
  finish();
  std::fprintf(stderr,
               "step %llu time: forward %.3f s, backward %.3f s, gradients %.3f s, casts %.3f s, "
               "optimizer %.3f s; waits: parameters %.3f s, "
               "gradients %.3f s, optimizer state %.3f s, kept inputs %.3f s; step %.3f s\n",
               static_cast<unsigned long long>(r.step), r.forward_s, r.backward_s, r.gradient_s,
               r.cast_s, r.optimizer_s, r.wait_param_s, r.wait_grad_s, r.wait_optimizer_s,
               r.wait_input_s, r.step_s);
}

void Summary::add(const zero3::StepResult& result, const std::optional<double>& held_out_loss,
                  std::uint64_t own_written) {
  if (!held_out_first_.has_value()) held_out_first_ = held_out_loss;
  if (held_out_loss.has_value()) held_out_last_ = held_out_loss;
  if (steps_++ == 0) first_ = result;
  last_ = result;
  skipped_ += result.overflow ? 1 : 0;
  taken_back_ += result.taken_back ? 1 : 0;
  tokens_ += result.tokens;
  seconds_ += result.step_s;
  bytes_written_ += result.bytes_nvme_write;
  own_written_ += own_written;
}

void Summary::print(std::FILE* out, const zero3::Budgets& budgets, DeviceMemory device,
                    const std::vector<zero3::SwapPathUse>& paths, const std::string& io,
                    const zero3::KeptInputs& inputs, std::uint32_t ranks) const {
  if (steps_ == 0) return;
  const auto row = [&](const char* name, const std::string& value) {
    std::fprintf(out, "  %-22s %s\n", name, value.c_str());
  };
  const auto size = [](std::uint64_t bytes) { return format_size(bytes); };
  const auto steps = static_cast<double>(steps_);
  std::fprintf(out, "\nTraining, %llu steps\n", static_cast<unsigned long long>(steps_));
  row("loss, first -> last",
      tools::print("%.4f -> %.4f", first_.loss, last_.loss) +
          (skipped_ != 0 ? tools::print(" (%llu steps skipped: overflow)",
                                        static_cast<unsigned long long>(skipped_))
                         : std::string()));
  if (held_out_last_.has_value()) {
    row("held-out loss",
        tools::print("%.4f -> %.4f; perplexity %.4g -> %.4g", *held_out_first_, *held_out_last_,
                     std::exp(*held_out_first_), std::exp(*held_out_last_)));
  }
  if (taken_back_ != 0) {
    row("update under backward",
        tools::print("taken back in %llu steps, which were clipped or skipped",
                     static_cast<unsigned long long>(taken_back_)));
  }
  row("tokens/s", tools::print("%.0f", rate(static_cast<double>(tokens_), seconds_)));
  row("step time", tools::print("%.3f s measured", seconds_ / steps) +
                       (last_.predicted_step_s == last_.predicted_step_s
                            ? tools::print("; last step %.3f s, predicted %.3f s", last_.step_s,
                                           last_.predicted_step_s)
                            : std::string()));
  row("last step's bound",
      tools::print("%.3f s: ", std::max(last_.computed_s, last_.disk_s)) +
          tools::print("%.3f s of computing, %.3f s of the disk", last_.computed_s, last_.disk_s));
  row("nvme, bytes per step",
      size(last_.bytes_nvme_read) + " read, " + size(last_.bytes_nvme_write) + " written");
  if (!io.empty()) row("nvme, moved by", io);
  row("host <-> device",
      size(last_.bytes_h2d) + " to device, " + size(last_.bytes_d2h) + " to host");
  print_wear(out, paths, ranks);
  if (inputs.some()) {
    const std::uint64_t stay = inputs.bytes_in(tiering::Tier::Device);
    row("kept inputs", size(inputs.bytes_in(tiering::Tier::Host)) + " in host memory, " +
                           size(inputs.bytes_in(tiering::Tier::Nvme)) + " on nvme" +
                           (stay == 0 ? std::string() : ", " + size(stay) + " with activations"));
  }
  row("peak device memory", size(last_.peak_device) + " of " + size(budgets.device));
  row("peak host memory", size(last_.peak_host) + " of " + size(budgets.host));
  row("peak activations", size(last_.peak_activations));
  row("peak process RSS", size(last_.peak_process_rss));
  if (device == DeviceMemory::OfTheProcess) print_process(out);
}

/// Prints the bytes that the run wrote to NVMe, including the initial filling of the swap files, as
/// writes wear out disks.
void Summary::print_wear(std::FILE* out, const std::vector<zero3::SwapPathUse>& paths,
                         std::uint32_t ranks) const {
  std::uint64_t own = 0;
  for (const zero3::SwapPathUse& path : paths) own += path.bytes_written;
  // All ranks' shares have the same size.
  const std::uint64_t at_start = (own - own_written_) * ranks;
  const double per_step = static_cast<double>(bytes_written_) / static_cast<double>(steps_);
  std::fprintf(out, "  %-22s %s, of it %s at the start; %.3g TB per 1,000 steps\n",
               "nvme, written in all", format_size(at_start + bytes_written_).c_str(),
               format_size(at_start).c_str(), per_step * 1e3 / 1e12);
  if (paths.size() < 2 || ranks > 1) return;
  for (const zero3::SwapPathUse& path : paths) {
    std::fprintf(out, "    %-20s %s read, %s written through %s\n", "of it",
                 format_size(path.bytes_read).c_str(), format_size(path.bytes_written).c_str(),
                 path.directory.c_str());
  }
}

/// Prints the parts of the process's memory. The tiers' gradients are LibTorch tensors, and counted
/// once.
void Summary::print_process(std::FILE* out) const {
  const zero3::StepResult& r = last_;
  if (r.peak_program == 0) return;  // was not measured
  const auto part = [&](const char* name, std::uint64_t bytes) {
    std::fprintf(out, "    %-20s %s\n", name, format_size(bytes).c_str());
  };
  const std::uint64_t device = r.peak_device - r.peak_gradients;
  const std::uint64_t sum =
      r.peak_program + device + r.peak_host + r.peak_activations + r.peak_heap;
  part("program, libraries", r.peak_program);
  part("device, pool", device);
  part("host", r.peak_host);
  part("tensors, gradients", r.peak_activations);
  part("other heap", r.peak_heap);
  part(sum > r.peak_process_rss ? "less than the sum" : "not accounted for",
       std::max(sum, r.peak_process_rss) - std::min(sum, r.peak_process_rss));
}

}  // namespace artesian::tools
