// A machine with a clock that jumps, and a file system without direct I/O: put before a process by
// LD_PRELOAD.
//
// Above it: odd_machines.py, which builds it. Below it: libc. HPS_JUMPING_CLOCK: every look at the
// wall clock finds it up to a year ahead or behind; the clock that only goes forward stays as it
// is. HPS_NO_DIRECT: a file that is opened with O_DIRECT is refused, as older tmpfs does.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>

#include <atomic>

namespace {

constexpr int64_t kYear = 365 * 86400;

template <class Call>
Call* Next(const char* name) {
  return reinterpret_cast<Call*>(dlsym(RTLD_NEXT, name));
}

bool IsOn(const char* name) { return getenv(name) != nullptr; }

// Another one at each call, of either sign.
int64_t Jump() {
  static std::atomic<uint64_t> state{1};
  const uint64_t word = state.fetch_add(1) * 0x9E3779B97F4A7C15u;
  return static_cast<int64_t>((word >> 20) % (2 * kYear)) - kYear;
}

bool Refuses(int flags) {
  if ((flags & O_DIRECT) == 0 || !IsOn("HPS_NO_DIRECT")) return false;
  errno = EINVAL;
  return true;
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* now) noexcept {
  static const auto next = Next<int(clockid_t, timespec*)>("clock_gettime");
  const int result = next(clock, now);
  if (clock == CLOCK_REALTIME && IsOn("HPS_JUMPING_CLOCK")) now->tv_sec += Jump();
  return result;
}

time_t time(time_t* kept) noexcept {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (kept != nullptr) *kept = now.tv_sec;
  return now.tv_sec;
}

int gettimeofday(timeval* now, void*) noexcept {
  timespec found;
  clock_gettime(CLOCK_REALTIME, &found);
  *now = {found.tv_sec, found.tv_nsec / 1000};
  return 0;
}

int open64(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  return Refuses(flags) ? -1 : Next<int(const char*, int, ...)>("open64")(path, flags, mode);
}

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  return Refuses(flags) ? -1 : Next<int(const char*, int, ...)>("open")(path, flags, mode);
}

int openat(int folder, const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  if (Refuses(flags)) return -1;
  return Next<int(int, const char*, int, ...)>("openat")(folder, path, flags, mode);
}

int openat64(int folder, const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  if (Refuses(flags)) return -1;
  return Next<int(int, const char*, int, ...)>("openat64")(folder, path, flags, mode);
}

}  // extern "C"
