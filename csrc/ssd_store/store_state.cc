// The checks before a verb, and what stops a store.
//
// Above it: store_state.h. Below it: file_system.
#include "ssd_store/store_state.h"

#include <unistd.h>

#include <cerrno>

namespace hps {

StoreState::StoreState(FileSystem* files, const StoreOptions& options)
    : files_(files),
      options_(options),
      owner_(getpid()),
      mutations_(std::make_unique<TurnLock>()) {}

bool StoreState::is_owner() const { return getpid() == owner_; }

// Before any lock: one of the parent's threads may have held it at the fork.
Status StoreState::CheckOwner() const {
  return is_owner() ? Status::Ok() : ForkedError(options_.path, owner_);
}

Status StoreState::CheckHeld() const {
  HPS_RETURN_IF_ERROR(CheckOwner());
  return files_->CheckHeld();
}

Status StoreState::CheckReadable() const {
  HPS_RETURN_IF_ERROR(CheckOwner());
  if (is_closed_) {
    return Status(StatusCode::kStore, options_.path + ": the store has been closed", EBADF);
  }
  if (!options_.has_rows) {
    return Status(StatusCode::kStore, options_.path + ": the store was opened without its rows");
  }
  if (is_half_loaded_) {
    return Status(StatusCode::kStore,
                  options_.path + ": the checkpoint could not be loaded; open the store again",
                  EIO);
  }
  return Status::Ok();
}

// Takes no lock: one of the parent's threads may have held it at the fork.
void StoreState::Abandon() {
  is_closed_ = true;
  (void)mutations_.release();
}

Status StoreState::CheckWritable() const {
  AssertLocked();
  HPS_RETURN_IF_ERROR(CheckReadable());
  if (options_.read_only) {
    return Status(StatusCode::kStore, options_.path + ": the store was opened read-only", EROFS);
  }
  return failure_.empty() ? Status::Ok() : Stopped(StatusCode::kStore, EIO);
}

bool StoreState::has_stopped() const {
  AssertLocked();
  return !failure_.empty();
}

Status StoreState::Stopped(StatusCode code, int os_error) const {
  return Status(code,
                options_.path + ": the store stopped after an error (" + failure_ +
                    "); open it again to go on from its newest checkpoint",
                os_error);
}

Status StoreState::Settle(const Status& status) {
  AssertLocked();
  if (failure_.empty()) failure_ = WithoutAdvice(status.message());
  return Stopped(status.code(), status.os_error());
}

// What a store that is not at its path any more has done stays in the folder that it holds; it is
// the end of its writing too.
Status StoreState::SettleIfBegun(const Status& status, bool is_begun) {
  if (is_begun) return Settle(status);
  if (status.os_error() != ESTALE) return status;
  return Settle(Status(status.code(), status.message() + "; nothing was committed", ESTALE));
}

Status StoreState::CheckCommittable() {
  HPS_RETURN_IF_ERROR(CheckWritable());
  const Status held = files_->CheckHeld();
  return held.ok() ? held : SettleIfBegun(held, false);
}

Status StoreState::Explained(const Status& status) {
  if (status.os_error() != ENOENT) return status;
  const Status held = files_->CheckHeld();
  return held.os_error() == ESTALE ? SettleIfBegun(held, false) : status;
}

}  // namespace hps
