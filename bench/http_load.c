/* Sends prepared HTTP requests over kept connections from one thread, one under way on each connection:
 * `http_load PORT CONNECTIONS RATE FILE`.
 *
 * FILE holds requests, each as its length in decimal, a newline and its bytes. Thirteen digits 1000000000000
 * in a request stand for the time at which it was due: 10^12 plus microseconds of CLOCK_MONOTONIC.
 * With RATE 0 a connection sends as soon as it is answered. Else RATE requests a second are due on a clock of
 * their own, over whichever connection is free, and count from when they were due.
 *
 * Answers each line on its standard input with the requests answered since the line before, and their
 * latency in microseconds: p50, p99, most. Ends with its input. An answer other than 200 or 204 ends it with
 * an error.
 */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define STAMP "1000000000000"
#define STAMP_DIGITS 13
#define MOST_STAMPS 64
#define MOST_REQUESTS 256
#define ANSWER_BYTES 16384
/* Each power of two of nanoseconds has 64 buckets, so a percentile is within 1.6 %. */
#define FINE 64
#define BUCKETS (64 * FINE)

struct request {
    char *bytes;
    size_t length;
    int stamps;
    size_t stamp_at[MOST_STAMPS];
};

struct connection {
    int fd;
    int busy;
    size_t turn;
    int64_t since;
    size_t held;
    char answer[ANSWER_BYTES];
};

static struct request requests[MOST_REQUESTS];
static size_t request_count;
static struct connection *connections;
static int connection_count;
static uint64_t histogram[BUCKETS], answered;
static int64_t most, first_due, interval;
static uint64_t due_count, sent_count;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static int64_t now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1000000000LL + at.tv_nsec;
}

static int bucket_of(int64_t took) {
    uint64_t value = took < FINE ? FINE : (uint64_t)took;
    int power = 63 - __builtin_clzll(value);
    return power * FINE + (int)((value >> (power - 6)) & (FINE - 1));
}

static double bucket_value(int bucket) {
    int power = bucket / FINE;
    return (double)((uint64_t)(FINE + bucket % FINE) << (power - 6));
}

static double percentile(double part) {
    uint64_t wanted = (uint64_t)(part * (double)answered), passed = 0;
    for (int bucket = 0; bucket < BUCKETS; bucket++)
        if ((passed += histogram[bucket]) > wanted) return bucket_value(bucket) / 1000;
    return (double)most / 1000;
}

static void report(void) {
    printf("%llu %.1f %.1f %.1f\n", (unsigned long long)answered, percentile(0.5), percentile(0.99),
           (double)most / 1000);
    fflush(stdout);
    memset(histogram, 0, sizeof histogram);
    answered = 0;
    most = 0;
}

static void read_requests(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) fail(path);
    size_t length;
    while (request_count < MOST_REQUESTS && fscanf(file, "%zu", &length) == 1) {
        struct request *one = &requests[request_count++];
        fgetc(file);
        one->bytes = malloc(length + 1);
        one->length = length;
        if (!one->bytes || fread(one->bytes, 1, length, file) != length) fail(path);
        one->bytes[length] = 0;
        for (char *at = one->bytes; one->stamps < MOST_STAMPS && (at = memmem(at, one->bytes + length - at, STAMP, STAMP_DIGITS)); at += STAMP_DIGITS)
            one->stamp_at[one->stamps++] = (size_t)(at - one->bytes);
    }
    fclose(file);
    if (!request_count) {
        fprintf(stderr, "%s holds no request\n", path);
        exit(1);
    }
}

static void send_one(struct connection *one, int64_t since) {
    struct request *next = &requests[one->turn++ % request_count];
    if (next->stamps) {
        char digits[24];
        snprintf(digits, sizeof digits, "1%012lld", (long long)(since / 1000 % 1000000000000LL));
        for (int number = 0; number < next->stamps; number++)
            memcpy(next->bytes + next->stamp_at[number], digits, STAMP_DIGITS);
    }
    one->since = since;
    one->busy = 1;
    for (size_t sent = 0; sent < next->length;) {
        ssize_t some = send(one->fd, next->bytes + sent, next->length - sent, MSG_NOSIGNAL);
        if (some < 0 && errno != EINTR) fail("send");
        if (some > 0) sent += (size_t)some;
    }
}

static void send_due(struct connection *one) {
    if (!interval) {
        send_one(one, now());
    } else if (sent_count < due_count) {
        send_one(one, first_due + (int64_t)sent_count++ * interval);
    }
}

/* Whether the held bytes are a whole answer. */
static int whole(struct connection *one) {
    one->answer[one->held] = 0;
    char *end = strstr(one->answer, "\r\n\r\n");
    if (!end) return 0;
    if (strncmp(one->answer, "HTTP/1.1 204", 12) == 0) return 1;
    if (strncmp(one->answer, "HTTP/1.1 200", 12) != 0) {
        fprintf(stderr, "%.500s\n", one->answer);
        exit(1);
    }
    char *length = strcasestr(one->answer, "\r\nContent-Length:");
    size_t body = length && length < end ? strtoul(length + 17, NULL, 10) : 0;
    return one->held >= (size_t)(end + 4 - one->answer) + body;
}

static void receive(struct connection *one) {
    ssize_t some = recv(one->fd, one->answer + one->held, ANSWER_BYTES - 1 - one->held, MSG_DONTWAIT);
    if (some < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (some <= 0) {
        fprintf(stderr, "the connection was closed: %s\n", some ? strerror(errno) : "end of stream");
        exit(1);
    }
    one->held += (size_t)some;
    if (!whole(one)) return;
    int64_t took = now() - one->since;
    histogram[bucket_of(took)]++;
    answered++;
    if (took > most) most = took;
    one->held = 0;
    one->busy = 0;
    send_due(one);
}

static void tick(int timer) {
    uint64_t passed;
    if (read(timer, &passed, sizeof passed) != sizeof passed) return;
    due_count += passed;
    for (int number = 0; number < connection_count && sent_count < due_count; number++)
        if (!connections[number].busy) send_due(&connections[number]);
}

static void open_connections(int epoll, int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int number = 0; number < connection_count; number++) {
        struct connection *one = &connections[number];
        int no_delay = 1;
        one->fd = socket(AF_INET, SOCK_STREAM, 0);
        one->turn = (size_t)number;
        if (one->fd < 0 || connect(one->fd, (struct sockaddr *)&to, sizeof to) < 0) fail("connect");
        setsockopt(one->fd, IPPROTO_TCP, TCP_NODELAY, &no_delay, sizeof no_delay);
        struct epoll_event wanted = {.events = EPOLLIN, .data.ptr = one};
        epoll_ctl(epoll, EPOLL_CTL_ADD, one->fd, &wanted);
    }
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: http_load PORT CONNECTIONS RATE FILE\n");
        return 2;
    }
    connection_count = atoi(argv[2]);
    double rate = atof(argv[3]);
    read_requests(argv[4]);
    connections = calloc((size_t)connection_count, sizeof *connections);
    int epoll = epoll_create1(0), timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    if (!connections || epoll < 0 || timer < 0) fail("start");
    open_connections(epoll, atoi(argv[1]));
    struct epoll_event told = {.events = EPOLLIN, .data.ptr = &epoll};
    epoll_ctl(epoll, EPOLL_CTL_ADD, STDIN_FILENO, &told);
    if (rate > 0) {
        interval = (int64_t)(1e9 / rate);
        first_due = now() + interval;
        struct timespec step = {interval / 1000000000, interval % 1000000000};
        struct timespec first = {first_due / 1000000000, first_due % 1000000000};
        struct itimerspec when = {.it_interval = step, .it_value = first};
        timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL);
        struct epoll_event ticks = {.events = EPOLLIN, .data.ptr = &timer};
        epoll_ctl(epoll, EPOLL_CTL_ADD, timer, &ticks);
    } else {
        for (int number = 0; number < connection_count; number++) send_due(&connections[number]);
    }
    for (;;) {
        struct epoll_event events[128];
        int count = epoll_wait(epoll, events, 128, -1);
        for (int number = 0; number < count; number++) {
            if (events[number].data.ptr == &epoll) {
                char line[64];
                if (read(STDIN_FILENO, line, sizeof line) <= 0) return 0;
                report();
            } else if (events[number].data.ptr == &timer) {
                tick(timer);
            } else {
                receive(events[number].data.ptr);
            }
        }
    }
}
