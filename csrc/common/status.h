// Status: what a native operation returns when the world may refuse it.
//
// Above it: every component. Below it: nothing. No native code throws; csrc/bindings turns a Status
// into the exception of hps.errors with the same name. A Status is a value; copying is cheap when
// ok.
#pragma once

#include <string>
#include <utility>

namespace hps {

enum class StatusCode {
  kOk,
  kConfig,      // ConfigError: an argument or a layout that cannot work
  kCapacity,    // CapacityError: a batch that cannot be held at once
  kNonFinite,   // NonFiniteError: a gradient was NaN or infinite
  kCorruption,  // CorruptionError: stored bytes contradict their checksum or structure
  kStore,       // StoreError: the operating system refused (os_error holds errno)
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message, int os_error = 0)
      : code_(code), os_error_(os_error), message_(std::move(message)) {}

  static Status Ok() { return Status(); }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  int os_error() const { return os_error_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  int os_error_ = 0;
  std::string message_;
};

}  // namespace hps

// Returns from the enclosing function if `expression` is not ok.
#define HPS_RETURN_IF_ERROR(expression)       \
  do {                                        \
    ::hps::Status hps_status_ = (expression); \
    if (!hps_status_.ok()) [[unlikely]]       \
      return hps_status_;                     \
  } while (false)
