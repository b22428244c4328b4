#include "exec/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

#include "os/system.h"

namespace sdx {
namespace {

constexpr int64_t kWorkPerThread = 5'000;  // ns of work that pay for waking one more thread
constexpr int64_t kChunksPerThread = 4;    // enough to balance load, few enough to be cheap
constexpr int kSpinsBeforeYield = 4096;    // while the caller waits for the last chunks

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Incremented to stop all workers that spin.
std::atomic<int> spin_stops{0};

// One phase while it runs. It is on its caller's stack, so the caller stays until `busy` is 0.
//
// The range is cut into one subrange per thread. Each thread starts in a subrange of its own, the
// same one in every phase, so that it finds in its core's cache what the step before left there;
// then it helps with the others (work sharing by an atomic counter per subrange).
struct Job {
  const Phase* phase;
  const void* args;
  Data data;
  int64_t local_bytes;
  int64_t chunk;
  int n_subranges;
  ThreadOptions options;
  std::atomic<int> n_joined{1};  // threads that have a local area; the caller has the first
  std::atomic<int> busy{0};      // offers that are neither withdrawn nor finished
  // The first item that failed. Items before it still run, so that the reported error does not
  // depend on the number of threads; items after it are skipped.
  std::atomic<int64_t> failed_at{INT64_MAX};
  Status status{};
  std::mutex failure_mutex{};
  struct alignas(64) Subrange {  // a cache line each: no false sharing
    std::atomic<int64_t> next;
    int64_t end;
  };
  Subrange* subranges;

  void add_failure(int64_t begin, const Status& result) {
    std::lock_guard lock(failure_mutex);
    if (begin >= failed_at.load()) return;
    failed_at.store(begin);
    status = result;
  }

  void work(int area) {
    Data own = data;
    own.local = data.local + area * local_bytes;
    for (int i = 0; i < n_subranges; ++i) {
      Subrange& subrange = subranges[(area + i) % n_subranges];
      for (;;) {
        const int64_t begin = subrange.next.fetch_add(chunk, std::memory_order_relaxed);
        if (begin >= subrange.end || begin > failed_at.load(std::memory_order_relaxed)) break;
        Status result = phase->run(args, own, begin, std::min(begin + chunk, subrange.end));
        if (!result.ok()) add_failure(begin, result);
      }
    }
  }
};

// A thread with a mailbox for one job. The mailbox is null (idle), a job (offered) or `begun()`.
class Worker {
 public:
  // Offers a job; false if the worker has one already.
  bool offer(Job* job) {
    Job* none = nullptr;
    if (!mail_.compare_exchange_strong(none, job)) return false;
    if (sleeps_.load()) wake();
    return true;
  }

  // Withdraws an offer; false if the worker has begun.
  bool withdraw(Job* job) { return mail_.compare_exchange_strong(job, nullptr); }

  void start() {
    std::thread thread([this] { loop(); });
    handle_ = thread.native_handle();
    thread.detach();
  }

  void bind(const std::vector<int>& cpus) { os::bind_thread(handle_, cpus); }

 private:
  static Job* begun() { return reinterpret_cast<Job*>(1); }

  void loop() {
    ThreadOptions latest;
    latest.spins = false;
    for (;;) {
      Job* job = wait(latest);
      if (!mail_.compare_exchange_strong(job, begun())) continue;
      if (job->options.flushes_denormals != latest.flushes_denormals)
        flush_denormals(job->options.flushes_denormals);
      latest = job->options;
      job->work(job->n_joined.fetch_add(1));
      mail_.store(nullptr);
      job->busy.fetch_sub(1);  // last: the caller may destroy the job after it
    }
  }

  // Spins for a while, then sleeps, until there is a job.
  Job* wait(const ThreadOptions& latest) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(latest.spin_us);
    const int seen_stops = spin_stops.load(std::memory_order_relaxed);
    for (int round = 0;; ++round) {
      if (Job* job = mail_.load()) return job;
      if (!latest.spins || spin_stops.load(std::memory_order_relaxed) != seen_stops) break;
      if (round % 64 == 63 && std::chrono::steady_clock::now() > until) break;
      pause();
    }
    // `sleeps_` is set before the mailbox is read again, and offer() reads it after writing the
    // mailbox: either this thread sees the job or the offerer sees that it must wake it.
    // wait_while() compares `signal_`, so a wake-up between the check and the sleep is not lost.
    for (;;) {
      const int seen = signal_.load();
      sleeps_.store(true);
      if (Job* job = mail_.load()) {
        sleeps_.store(false);
        return job;
      }
      os::wait_while(signal_, seen);
      sleeps_.store(false);
    }
  }

  void wake() {
    signal_.fetch_add(1);
    os::wake_one(signal_);
  }

  std::atomic<Job*> mail_{nullptr};
  std::atomic<bool> sleeps_{false};
  std::atomic<int> signal_{0};
  std::thread::native_handle_type handle_{};
};

struct ThreadPool {
  std::mutex growing;
  std::atomic<int> n_workers{0};
  std::atomic<bool> is_full{false};  // the system refused another thread
  Worker* workers[kMaxThreads] = {};

  // Starts workers up to `wanted`. If the system refuses more threads there are fewer: a run needs
  // only its caller's. Workers are never destroyed, as others may be about to offer them a job.
  void grow(int wanted) {
    std::lock_guard lock(growing);
    for (int i = n_workers.load(); i < std::min(wanted, kMaxThreads); ++i) {
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

std::atomic<ThreadPool*> current{nullptr};

// When the library is loaded: a fork while a thread registers it would leave its guard locked.
[[maybe_unused]] const bool registered =
    (os::at_fork(nullptr, nullptr, [] { current.store(new ThreadPool); }), true);

// The pool of this process. Only the forking thread exists in a child, which gets an empty pool;
// the old one is leaked, since its locks may be held by threads that no longer exist.
ThreadPool& pool() {
  ThreadPool* found = current.load();
  if (found == nullptr) {
    auto* created = new ThreadPool;
    if (current.compare_exchange_strong(found, created)) return *created;
    delete created;
  }
  return *found;
}

}  // namespace

bool flush_denormals(bool on) {
#if defined(__x86_64__)
  constexpr unsigned kBits = 0x8040;  // MXCSR: flush to zero, denormals are zero
  const unsigned before = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(on ? before | kBits : before & ~kBits);
  return (before & kBits) == kBits;
#elif defined(__aarch64__)
  constexpr uint64_t kBit = 1u << 24;  // FPCR.FZ
  uint64_t before;
  asm volatile("mrs %0, fpcr" : "=r"(before));
  asm volatile("msr fpcr, %0" ::"r"(on ? before | kBit : before & ~kBit));
  return (before & kBit) != 0;
#else
  return on && false;
#endif
}

void stop_spinning() { spin_stops.fetch_add(1, std::memory_order_relaxed); }

int usable_cpus() {
  int cpus = os::affinity_cpus();
  if (cpus < 1) cpus = int(std::max(1u, std::thread::hardware_concurrency()));
  const double quota = os::quota_cpus();
  return quota > 0 ? std::min(cpus, std::max(1, int(quota + 0.999))) : cpus;
}

void ensure_threads(int threads) { pool().grow(threads - 1); }

void set_affinities(const std::vector<std::vector<int>>& sets) {
  ThreadPool& shared = pool();
  shared.grow(int(sets.size()));
  for (size_t i = 0; i < sets.size() && i < size_t(shared.n_workers.load()); ++i)
    shared.workers[i]->bind(sets[i]);
}

namespace {

void wait_for_workers(const Job& job) {
  for (int round = 0; job.busy.load() != 0; ++round) {
    if (round < kSpinsBeforeYield)
      pause();
    else
      std::this_thread::yield();  // the worker may have lost its CPU to another process
  }
}

// Not inlined into run_phase: this takes 20 KB of stack, and custom ops may nest single-threaded
// phases deeply.
[[gnu::noinline]] Status run_on(int64_t threads, const Phase& phase, const void* args,
                                const Data& data, int64_t local_bytes,
                                const ThreadOptions& options) {
  ThreadPool& shared = pool();
  // In a forked child the pool is empty, though its sessions have called ensure_threads in the
  // parent.
  if (shared.n_workers.load() + 1 < threads && !shared.is_full.load())
    shared.grow(int(threads) - 1);
  threads = std::min<int64_t>(threads, shared.n_workers.load() + 1);
  Job::Subrange subranges[kMaxThreads];
  for (int64_t i = 0; i < threads; ++i) {
    subranges[i].next.store(phase.count * i / threads, std::memory_order_relaxed);
    subranges[i].end = phase.count * (i + 1) / threads;
  }
  Job job{.phase = &phase,
          .args = args,
          .data = data,
          .local_bytes = local_bytes,
          .chunk = std::max<int64_t>(1, phase.count / (threads * kChunksPerThread)),
          .n_subranges = int(threads),
          .options = options,
          .subranges = subranges};
  Worker* offered[kMaxThreads];
  int n_offered = 0;
  const int n_workers = shared.n_workers.load();
  for (int i = 0; i < n_workers && n_offered < threads - 1; ++i) {
    job.busy.fetch_add(1);
    if (shared.workers[i]->offer(&job))
      offered[n_offered++] = shared.workers[i];
    else
      job.busy.fetch_sub(1);
  }
  job.work(0);
  for (int i = 0; i < n_offered; ++i)
    if (offered[i]->withdraw(&job)) job.busy.fetch_sub(1);
  wait_for_workers(job);
  return job.failed_at.load() == INT64_MAX ? Status() : job.status;
}

}  // namespace

Status run_phase(const Phase& phase, const void* args, const Data& data, int64_t local_bytes,
                 const ThreadOptions& options) {
  if (phase.count <= 0) return {};
  const int64_t work = phase.count > INT64_MAX / phase.work ? INT64_MAX : phase.count * phase.work;
  int64_t threads = std::min<int64_t>({options.threads, phase.count, work / kWorkPerThread});
  threads = std::min<int64_t>(threads, kMaxThreads);
  if (threads <= 1) return phase.run(args, data, 0, phase.count);
  return run_on(threads, phase, args, data, local_bytes, options);
}

}  // namespace sdx
