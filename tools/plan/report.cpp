#include "tools/plan/report.h"

#include <nlohmann/json.hpp>

#include "base/units.h"
#include "tools/shell/print.h"

namespace artesian::tools {

using Json = nlohmann::ordered_json;

namespace {

constexpr std::size_t changes_max = 3;

std::string row(const char* name, const std::vector<std::string>& cells) {
  std::string line = print("  %-22s", name);
  for (const std::string& cell : cells) line += print(" %13s", cell.c_str());
  return line + "\n";
}

std::string bytes_or_dash(std::uint64_t bytes) {
  return bytes == 0 ? "-" : format_size(bytes);
}

struct LinkColumn {
  const char* name;
  const char* field;
  std::uint64_t zero3::Moved::*member;
};
constexpr LinkColumn links[] = {{"nvme read", "nvme_read", &zero3::Moved::nvme_read},
                                {"nvme write", "nvme_write", &zero3::Moved::nvme_write},
                                {"to device", "h2d", &zero3::Moved::to_device},
                                {"to host", "d2h", &zero3::Moved::to_host},
                                {"bus", "bus", &zero3::Moved::bus}};

struct KindRow {
  const char* name;
  const char* field;
  zero3::Moved zero3::MovedByKind::*member;
};
constexpr KindRow kinds[] = {{"parameters", "param", &zero3::MovedByKind::param},
                             {"gradients", "grad", &zero3::MovedByKind::grad},
                             {"optimizer state", "optimizer", &zero3::MovedByKind::optimizer},
                             {"kept inputs", "input", &zero3::MovedByKind::input}};

/// In terms of DeepSpeed's keys.
std::string checkpointing_text(const zero3::Config& config) {
  if (!config.activation_checkpointing) return "";
  return std::string(", activation_checkpointing") +
         (config.cpu_checkpointing ? ".cpu_checkpointing" : "");
}

/// Prints the config's most important values.
std::string config_text(const PlanCase& plan) {
  const zero3::Config& config = plan.config;
  const auto place = [](const zero3::OffloadConfig& offload) {
    return offload.device == zero3::Offload::None ? "the device" : offload_name(offload.device);
  };
  return print(
             "%s, computed in %s, gradients in %s; ZeRO stage %d, parameters on %s, optimizer on "
             "%s",
             dtype_name(config.param_dtype), dtype_name(plan.compute_dtype),
             dtype_name(config.grad_accum_dtype), config.zero.stage,
             place(config.zero.offload_param), place(config.zero.offload_optimizer)) +
         checkpointing_text(config) + "\n";
}

std::string head_text(const PlanReport& report) {
  const PlanCase& plan = *report.plan;
  const zero3::Config& config = plan.config;
  std::string text = print(
      "%s: %.4g parameters, %lld blocks, hidden %lld; micro-batch %llu x %llu tokens, %llu a step, "
      "%llu %s\n",
      plan.model->model_type.c_str(), static_cast<double>(report.figures.elements),
      static_cast<long long>(models::layer_count(*plan.model)),
      static_cast<long long>(plan.model->hidden),
      static_cast<unsigned long long>(config.micro_batch_size),
      static_cast<unsigned long long>(plan.length),
      static_cast<unsigned long long>(config.accumulation_steps),
      static_cast<unsigned long long>(plan.ranks),
      !plan.gpu         ? plan.ranks == 1 ? "CPU" : "CPU ranks"
      : plan.ranks == 1 ? "GPU"
                        : "GPUs");
  text += config_text(plan);
  return report.shape.empty() ? text : text + report.shape + "\n";
}

std::string memory_text(const PlanFigures& figures) {
  std::string text =
      "\n" + print("%-24s %13s %13s %13s\n", "memory of a rank", "device", "host", "nvme");
  const auto cells = [&](const auto& of) {
    std::vector<std::string> all;
    for (const TierColumn& tier : tiers) all.push_back(of(figures.*tier.member));
    return all;
  };
  for (const MemoryRow& each : memory_rows) {
    text += row(each.name,
                cells([&](const TierBytes& tier) { return bytes_or_dash(tier.*each.member); }));
  }
  text += row("in all", cells([](const TierBytes& tier) { return bytes_or_dash(tier.used()); }));
  text += row("budget", cells([](const TierBytes& tier) { return bytes_or_dash(tier.budget); }));
  return text + print("  %-22s %13s  beside the budgets; an estimate\n", "activations",
                      format_size(figures.activations).c_str());
}

std::string moved_text(const PlanFigures& figures) {
  std::string text = "\n" + print("%-24s", "bytes of a step");
  for (const LinkColumn& link : links) text += print(" %13s", link.name);
  text += "\n";
  const auto cells = [&](const zero3::Moved& moved) {
    std::vector<std::string> all;
    for (const LinkColumn& link : links) all.push_back(bytes_or_dash(moved.*link.member));
    return all;
  };
  for (const KindRow& kind : kinds) text += row(kind.name, cells(figures.moved.*kind.member));
  return text + row("in all", cells(figures.moved.total()));
}

/// Bytes of the `keep` newest checkpoints and of the one being written.
std::uint64_t checkpoints_at_once(const PlanFigures& figures, std::uint64_t keep) {
  return figures.checkpoint * (keep + 1);
}

/// The longest time that a stop takes: the current step, and a save.
double seconds_after_stop(const PlanFigures& figures) {
  return figures.time.seconds + figures.save_seconds;
}

std::string checkpoint_text(const PlanFigures& figures) {
  std::string text = format_size(figures.checkpoint) + "; " +
                     format_size(checkpoints_at_once(figures, 2)) + " with --checkpoint-keep 2, " +
                     format_size(checkpoints_at_once(figures, 1)) + " with 1";
  if (figures.save_seconds == 0.0) return text;
  return text + print("; %.3g s to save, a stop takes up to %.3g s (--grace)", figures.save_seconds,
                      seconds_after_stop(figures));
}

std::string time_text(const PlanReport& report) {
  const PlanFigures& figures = report.figures;
  const auto line = [](const char* name, const std::string& value) {
    return print("%-24s %s\n", name, value.c_str());
  };
  std::string busy;
  for (std::size_t index = 0; index < zero3::resource_count; ++index) {
    const double share = figures.time.busy[index] / figures.time.seconds;
    if (share < 0.0005) continue;
    busy +=
        (busy.empty() ? "" : ", ") +
        print("%s %.0f%%", zero3::resource_name(static_cast<zero3::Resource>(index)), share * 100);
  }
  std::string text = "\n" + line("predicted step", print("%.4g s", figures.time.seconds));
  if (figures.clipped_seconds != figures.time.seconds) {
    text += line("clipped", print("%.4g s where every step is", figures.clipped_seconds));
  }
  text += line("tokens/s", print("%.4g", figures.tokens_per_s));
  text += line("TFLOP/s of a rank", print("%.4g", figures.tflops));
  text += line("compute idle", print("%.0f%%", figures.idle_share * 100));
  text += line("bottleneck", figures.bottleneck);
  text += line("busy", busy);
  if (report.plan->ranks > 1) {
    text += line("bus, not hidden", print("%.3g s, %.0f%% of a step", report.exposed_bus,
                                          report.exposed_bus / figures.time.seconds * 100));
  }
  text += line("written to SSD", print("%.4g TB in 1,000 steps", figures.nvme_terabytes_written));
  return text + line("a checkpoint", checkpoint_text(figures));
}

std::string changes_text(const PlanReport& report) {
  std::string text = "\nwhat would help most\n";
  if (report.changes.empty()) text += "  no single change brings 1%\n";
  for (std::size_t index = 0; index < report.changes.size() && index < changes_max; ++index) {
    const Change& change = report.changes[index];
    text += print("  +%-5.3g%% tokens/s  ", change.gain * 100) + change.key + ": " + change.from +
            " -> " + change.to + "\n";
  }
  text += "\nwhat fits, fastest first, at this train_batch_size\n";
  if (report.candidates.empty()) text += "  nothing\n";
  for (const Candidate& candidate : report.candidates) {
    text += print("  %10.4g tokens/s  %9.4g s  ", candidate.figures.tokens_per_s,
                  candidate.figures.time.seconds) +
            candidate_text(candidate);
    if (candidate.measured_seconds.has_value()) {
      text += print("; measured %.4g s, planned / measured %.2f", *candidate.measured_seconds,
                    candidate.figures.time.seconds / *candidate.measured_seconds);
    }
    text += "\n";
  }
  return text;
}

Json memory_json(const PlanFigures& figures) {
  Json memory;
  for (const TierColumn& tier : tiers) {
    const TierBytes& bytes = figures.*tier.member;
    Json& object = memory[tier.name];
    for (const MemoryRow& each : memory_rows) object[each.field] = bytes.*each.member;
    object["used"] = bytes.used();
    object["budget"] = bytes.budget == 0 ? Json() : Json(bytes.budget);
  }
  memory["activations"] = figures.activations;
  return memory;
}

Json moved_json(const zero3::MovedByKind& moved) {
  Json object;
  for (const LinkColumn& link : links) {
    Json& each = object[link.field];
    for (const KindRow& kind : kinds) each[kind.field] = moved.*kind.member.*link.member;
    each["total"] = moved.total().*link.member;
  }
  return object;
}

Json step_json(const PlanReport& report) {
  const PlanFigures& figures = report.figures;
  Json busy;
  for (std::size_t index = 0; index < zero3::resource_count; ++index) {
    std::string name = zero3::resource_name(static_cast<zero3::Resource>(index));
    for (char& c : name) c = c == ' ' ? '_' : static_cast<char>(std::tolower(c));
    busy[name] = figures.time.busy[index];
  }
  return Json{{"seconds", figures.time.seconds},
              {"model_seconds", figures.time.model_seconds},
              {"clipped_seconds", figures.clipped_seconds},
              {"tokens", figures.tokens},
              {"tokens_per_s", figures.tokens_per_s},
              {"tflops", figures.tflops},
              {"compute_idle_share", figures.idle_share},
              {"bottleneck", figures.bottleneck},
              {"busy_s", std::move(busy)},
              {"exposed_bus_s", report.exposed_bus}};
}

Json checkpoint_json(const PlanFigures& figures) {
  const bool known = figures.save_seconds != 0.0;
  return Json{{"bytes", figures.checkpoint},
              {"bytes_keep_1", checkpoints_at_once(figures, 1)},
              {"bytes_keep_2", checkpoints_at_once(figures, 2)},
              {"save_seconds", known ? Json(figures.save_seconds) : Json()},
              {"stop_seconds", known ? Json(seconds_after_stop(figures)) : Json()}};
}

Json config_json(const zero3::Config& config) {
  return Json{{"stage", config.zero.stage},
              {"offload_param", offload_name(config.zero.offload_param.device)},
              {"offload_optimizer", offload_name(config.zero.offload_optimizer.device)},
              {"train_micro_batch_size_per_gpu", config.micro_batch_size},
              {"gradient_accumulation_steps", config.accumulation_steps},
              {"activation_checkpointing", config.activation_checkpointing},
              {"cpu_checkpointing", config.cpu_checkpointing}};
}

Json planned_json(const PlanCase& plan) {
  Json object = config_json(plan.config);
  object["param_dtype"] = dtype_name(plan.config.param_dtype);
  object["compute_dtype"] = dtype_name(plan.compute_dtype);
  object["grad_accum_dtype"] = dtype_name(plan.config.grad_accum_dtype);
  return object;
}

Json candidate_json(const Candidate& candidate) {
  const auto& measured = candidate.measured_seconds;
  Json object{{"name", candidate.name}};
  object.update(config_json(candidate.config));
  object["step_seconds"] = candidate.figures.time.seconds;
  object["measured_step_seconds"] = measured.has_value() ? Json(*measured) : Json();
  object["tokens_per_s"] = candidate.figures.tokens_per_s;
  return object;
}

Json lists_json(const PlanReport& report) {
  Json changes = Json::array();
  for (std::size_t index = 0; index < report.changes.size() && index < changes_max; ++index) {
    const Change& change = report.changes[index];
    changes.push_back(Json{{"key", change.key},
                           {"from", change.from},
                           {"to", change.to},
                           {"gain", change.gain},
                           {"tokens_per_s", change.tokens_per_s},
                           {"step_seconds", change.step_seconds}});
  }
  Json candidates = Json::array();
  for (const Candidate& candidate : report.candidates) {
    candidates.push_back(candidate_json(candidate));
  }
  Json rates = Json::array();
  for (const RateSource& rate : report.rates) {
    rates.push_back(Json{
        {"name", rate.name}, {"value", rate.value}, {"unit", rate.unit}, {"source", rate.source}});
  }
  return Json{{"changes", std::move(changes)},
              {"candidates", std::move(candidates)},
              {"advice", report.advice},
              {"notes", report.notes},
              {"rates", std::move(rates)}};
}

}  // namespace

std::string candidate_text(const Candidate& candidate) {
  return candidate.name + checkpointing_text(candidate.config) +
         print(", micro-batch %llu x %llu",
               static_cast<unsigned long long>(candidate.config.micro_batch_size),
               static_cast<unsigned long long>(candidate.config.accumulation_steps));
}

std::string plan_text(const PlanReport& report) {
  std::string text = head_text(report) + memory_text(report.figures) + moved_text(report.figures) +
                     time_text(report) + changes_text(report);
  const auto list = [&](const char* title, const std::vector<std::string>& lines) {
    if (lines.empty()) return;
    text += std::string("\n") + title + "\n";
    for (const std::string& line : lines) text += "  " + line + "\n";
  };
  list("advice", report.advice);
  list("notes", report.notes);
  text += "\nby these rates\n";
  for (const RateSource& rate : report.rates) {
    text += print("  %-16s %8.4g %-8s", rate.name.c_str(), rate.value, rate.unit.c_str()) +
            rate.source + "\n";
  }
  return text;
}

std::string plan_json(const PlanReport& report) {
  const PlanCase& plan = *report.plan;
  Json object{{"model",
               {{"type", plan.model->model_type},
                {"parameters", report.figures.elements},
                {"hidden", plan.model->hidden},
                {"layers", models::layer_count(*plan.model)},
                {"vocab_size", plan.model->vocab_size},
                {"sequence_length", plan.length},
                {"chosen", report.shape}}},
              {"target",
               {{"device", plan.gpu ? "gpu" : "cpu"},
                {"gpus", report.gpus},
                {"nodes", report.nodes},
                {"ranks", plan.ranks}}},
              {"planned", planned_json(plan)},
              {"memory", memory_json(report.figures)},
              {"bytes_per_step", moved_json(report.figures.moved)},
              {"step", step_json(report)},
              {"ssd_tb_written_per_1000_steps", report.figures.nvme_terabytes_written},
              {"checkpoint", checkpoint_json(report.figures)}};
  object.update(lists_json(report));
  return object.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace artesian::tools
