#include "zero3/torch/storage_refusal.h"

#include <utility>

#include "base/check.h"

namespace artesian::zero3 {

#ifdef ARTESIAN_STORAGE_CAN_REFUSE
namespace {

struct ThrowFlag {
  friend constexpr bool c10::StorageImpl::*member_of(ThrowFlag);
};
template <typename Tag, auto Member>
struct Opened {
  friend constexpr auto member_of(Tag) -> decltype(Member) { return Member; }
};
template struct Opened<ThrowFlag, &c10::StorageImpl::throw_on_immutable_data_ptr_>;

}  // namespace

bool released_tensors_throw() noexcept {
  return true;
}

void refuse(c10::StorageImpl& storage, std::string message) {
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(std::move(message));
}

void allow(c10::StorageImpl& storage, at::DataPtr memory) {
  storage.*member_of(ThrowFlag{}) = false;
  storage.set_data_ptr_noswap(std::move(memory));  // this call recomputes the flags
}
#else
bool released_tensors_throw() noexcept {
  return false;
}

void refuse(c10::StorageImpl&, std::string) {
  ARTESIAN_CHECK(released_tensors_throw());
}

void allow(c10::StorageImpl& storage, at::DataPtr memory) {
  storage.set_data_ptr_noswap(std::move(memory));
}
#endif

}  // namespace artesian::zero3
