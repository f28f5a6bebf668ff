// Saves a made-up training's checkpoint, for tests in other languages, and says what is in it:
//   checkpoint_save_tool FOLDER whole|split STEP
// prints, for each parameter, its name and its master weights as hexadecimal patterns.
#include <cstdio>
#include <cstdlib>

#include "tests/zero3/checkpoint/made_up_checkpoint.h"

int main(int count, char** arguments) {
  using namespace artesian;
  using namespace artesian::zero3;
  if (count != 4) return 2;
  const StateForm form = std::string(arguments[2]) == "split" ? StateForm::Split : StateForm::Whole;
  const std::uint64_t step = std::strtoull(arguments[3], nullptr, 10);
  const MadeUpTraining training(form, 3000);
  SaverOptions options;
  options.directory = arguments[1];
  auto saver = CheckpointSaver::open(system_files(), options);
  if (!saver.has_value()) return std::fprintf(stderr, "%s\n", saver.error().to_string().c_str());
  LentBuffers buffers;
  const auto saved =
      training.save(**saver, "global_step" + std::string(arguments[3]), step, buffers);
  if (!saved.has_value()) return std::fprintf(stderr, "%s\n", saved.error().to_string().c_str());
  for (std::uint32_t index = 0; index < training.parameters().size(); ++index) {
    std::printf("%s", training.parameters()[index].name.c_str());
    for (std::uint64_t i = 0; i < training.parameters()[index].numel(); ++i) {
      std::printf(" %08x", std::bit_cast<std::uint32_t>(training.master(step, index, i)));
    }
    std::printf("\n");
  }
  return 0;
}
