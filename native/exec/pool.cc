#include "exec/pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdio>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

namespace sdx {
namespace {

constexpr int64_t kWorthWaking = 5'000;  // ns of work that pay for one more thread
constexpr int64_t kChunksPerThread = 4;
constexpr int kPatientRounds = 4096;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Raised when workers are to stop spinning.
std::atomic<int> calms{0};

// One phase while it runs. It lives on its caller's stack, so the caller stays until `busy` is 0.
//
// Each thread begins in a part of the range of its own, the same one in every phase, so that what
// one step leaves in a core's cache is found there by the next; then it helps the others.
struct Job {
  const Phase* phase;
  const void* args;
  Data data;
  int64_t local_bytes;
  int64_t chunk;
  int n_parts;
  ThreadOptions options;
  std::atomic<int> n_joined{1};  // threads that have an area of their own; the caller has the first
  std::atomic<int> busy{0};
  // The first item that failed, whichever thread found one first: items before it still run, so
  // that the error does not depend on the number of threads.
  std::atomic<int64_t> failed_at{INT64_MAX};
  Status status{};
  std::mutex noting{};
  struct alignas(64) Part {
    std::atomic<int64_t> next;
    int64_t end;
  };
  Part* parts;

  void note(int64_t begin, const Status& result) {
    std::lock_guard lock(noting);
    if (begin >= failed_at.load()) return;
    failed_at.store(begin);
    status = result;
  }

  void work(int area) {
    Data mine = data;
    mine.local = data.local + area * local_bytes;
    for (int i = 0; i < n_parts; ++i) {
      Part& part = parts[(area + i) % n_parts];
      for (;;) {
        const int64_t begin = part.next.fetch_add(chunk, std::memory_order_relaxed);
        if (begin >= part.end || begin > failed_at.load(std::memory_order_relaxed)) break;
        Status result = phase->run(args, mine, begin, std::min(begin + chunk, part.end));
        if (!result.ok()) note(begin, result);
      }
    }
  }
};

// A thread that waits for jobs in a mailbox of its own.
class Worker {
 public:
  // Offers a job; false if the worker has one.
  bool offer(Job* job) {
    Job* none = nullptr;
    if (!mail_.compare_exchange_strong(none, job)) return false;
    if (sleeps_.load()) wake();
    return true;
  }

  // Takes an offer back; false if the worker has begun.
  bool withdraw(Job* job) { return mail_.compare_exchange_strong(job, nullptr); }

  void start() {
    std::thread([this] { loop(); }).detach();
  }

  std::atomic<pthread_t> handle{};

 private:
  static Job* begun() { return reinterpret_cast<Job*>(1); }

  void loop() {
    handle.store(pthread_self());
    ThreadOptions latest;
    latest.spins = false;
    for (;;) {
      Job* job = wait(latest);
      if (!mail_.compare_exchange_strong(job, begun())) continue;
      if (job->options.flushes != latest.flushes) flush_denormals(job->options.flushes);
      latest = job->options;
      job->work(job->n_joined.fetch_add(1));
      mail_.store(nullptr);
      job->busy.fetch_sub(1);  // the last touch: the job may be gone after it
    }
  }

  Job* wait(const ThreadOptions& latest) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(latest.spin_us);
    const int calmed = calms.load(std::memory_order_relaxed);
    for (int round = 0;; ++round) {
      if (Job* job = mail_.load()) return job;
      if (!latest.spins || calms.load(std::memory_order_relaxed) != calmed) break;
      if (round % 64 == 63 && std::chrono::steady_clock::now() > until) break;
      pause();
    }
    for (;;) {
      const int seen = signal_.load();
      sleeps_.store(true);
      if (Job* job = mail_.load()) {
        sleeps_.store(false);
        return job;
      }
      syscall(SYS_futex, &signal_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
      sleeps_.store(false);
    }
  }

  void wake() {
    signal_.fetch_add(1);
    syscall(SYS_futex, &signal_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  }

  std::atomic<Job*> mail_{nullptr};
  std::atomic<bool> sleeps_{false};
  std::atomic<int> signal_{0};
};

struct Pool {
  std::mutex growing;
  std::atomic<int> n_workers{0};
  std::atomic<bool> is_full{false};  // the system gave no more threads
  Worker* workers[kMostThreads] = {};

  // Where the system gives no more threads there are fewer: a run needs none but its own.
  void grow(int wanted) {
    std::lock_guard lock(growing);
    for (int i = n_workers.load(); i < std::min(wanted, kMostThreads); ++i) {
      auto made = std::make_unique<Worker>();
      try {
        made->start();
      } catch (const std::system_error&) {
        is_full.store(true);
        return;
      }
      workers[i] = made.release();
      n_workers.store(i + 1);
    }
  }
};

std::atomic<Pool*> current{nullptr};

// The threads of a process do not live on in its fork, which therefore begins with an empty pool.
Pool& pool() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { current.store(new Pool); });
  (void)registered;
  Pool* found = current.load();
  if (found == nullptr) {
    auto* fresh = new Pool;
    if (current.compare_exchange_strong(found, fresh)) return *fresh;
    delete fresh;
  }
  return *found;
}

// CPUs' worth of time that a cgroup grants; INT_MAX where it sets no limit.
int quota_cpus() {
  double share = 0;
  if (FILE* file = std::fopen("/sys/fs/cgroup/cpu.max", "r")) {
    double quota = 0, period = 0;
    if (std::fscanf(file, "%lf %lf", &quota, &period) == 2 && period > 0) share = quota / period;
    std::fclose(file);
  } else if (FILE* v1 = std::fopen("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "r")) {
    double quota = -1, period = 0;
    const bool has_quota = std::fscanf(v1, "%lf", &quota) == 1 && quota > 0;
    std::fclose(v1);
    FILE* other = std::fopen("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "r");
    if (other != nullptr) {
      if (has_quota && std::fscanf(other, "%lf", &period) == 1 && period > 0)
        share = quota / period;
      std::fclose(other);
    }
  }
  return share > 0 ? std::max(1, int(share + 0.999)) : INT_MAX;
}

}  // namespace

bool flush_denormals(bool on) {
#if defined(__x86_64__)
  constexpr unsigned kBits = 0x8040;  // flush to zero, denormals are zero
  const unsigned before = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(on ? before | kBits : before & ~kBits);
  return (before & kBits) == kBits;
#elif defined(__aarch64__)
  constexpr uint64_t kBit = 1u << 24;
  uint64_t before;
  asm volatile("mrs %0, fpcr" : "=r"(before));
  asm volatile("msr fpcr, %0" ::"r"(on ? before | kBit : before & ~kBit));
  return (before & kBit) != 0;
#else
  return on && false;
#endif
}

void calm_workers() { calms.fetch_add(1, std::memory_order_relaxed); }

int usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cpus = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
  if (cpus < 1) cpus = int(std::max(1u, std::thread::hardware_concurrency()));
  return std::min(cpus, quota_cpus());
}

void want_threads(int threads) { pool().grow(threads - 1); }

void set_affinities(const std::vector<std::vector<int>>& sets) {
  Pool& shared = pool();
  shared.grow(int(sets.size()));
  for (size_t i = 0; i < sets.size() && i < size_t(shared.n_workers.load()); ++i) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int cpu : sets[i])
      if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(cpu, &set);
    while (shared.workers[i]->handle.load() == pthread_t{}) sched_yield();
    pthread_setaffinity_np(shared.workers[i]->handle.load(), sizeof set, &set);
  }
}

namespace {

// Apart from what one thread does alone, which a custom op may nest: this takes 20 KB of stack.
[[gnu::noinline]] Status run_on(int64_t threads, const Phase& phase, const void* args,
                                const Data& data, int64_t local_bytes,
                                const ThreadOptions& options) {
  Pool& shared = pool();
  // A fork begins with an empty pool, and its sessions have asked for their threads before.
  if (shared.n_workers.load() + 1 < threads && !shared.is_full.load())
    shared.grow(int(threads) - 1);
  threads = std::min<int64_t>(threads, shared.n_workers.load() + 1);
  Job::Part parts[kMostThreads];
  for (int64_t i = 0; i < threads; ++i) {
    parts[i].next.store(phase.count * i / threads, std::memory_order_relaxed);
    parts[i].end = phase.count * (i + 1) / threads;
  }
  Job job{.phase = &phase,
          .args = args,
          .data = data,
          .local_bytes = local_bytes,
          .chunk = std::max<int64_t>(1, phase.count / (threads * kChunksPerThread)),
          .n_parts = int(threads),
          .options = options,
          .parts = parts};
  Worker* asked[kMostThreads];
  int n_asked = 0;
  const int n_workers = shared.n_workers.load();
  for (int i = 0; i < n_workers && n_asked < threads - 1; ++i) {
    job.busy.fetch_add(1);
    if (shared.workers[i]->offer(&job))
      asked[n_asked++] = shared.workers[i];
    else
      job.busy.fetch_sub(1);
  }
  job.work(0);
  for (int i = 0; i < n_asked; ++i)
    if (asked[i]->withdraw(&job)) job.busy.fetch_sub(1);
  for (int round = 0; job.busy.load() != 0; ++round) {
    if (round < kPatientRounds)
      pause();
    else
      sched_yield();  // the worker may have lost its CPU to another process
  }
  return job.failed_at.load() == INT64_MAX ? Status() : job.status;
}

}  // namespace

Status run_phase(const Phase& phase, const void* args, const Data& data, int64_t local_bytes,
                 const ThreadOptions& options) {
  if (phase.count <= 0) return {};
  const int64_t work = phase.count > INT64_MAX / phase.work ? INT64_MAX : phase.count * phase.work;
  int64_t threads = std::min<int64_t>({options.threads, phase.count, work / kWorthWaking});
  threads = std::min<int64_t>(threads, kMostThreads);
  if (threads <= 1) return phase.run(args, data, 0, phase.count);
  return run_on(threads, phase, args, data, local_bytes, options);
}

}  // namespace sdx
