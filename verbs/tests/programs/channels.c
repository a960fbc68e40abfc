/* Completion channels: who wakes, and whose event it is. */

#include "laws.h"
#include <dirent.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>

enum { MANY = 150, ROUNDS = 50, WAITING = 3 };

/* Writes a byte from the left QP, which completes once. */
static void write_one(uint64_t wr_id)
{
	struct ibv_sge sge = { (uintptr_t)memory, 1, mr->lkey };
	struct ibv_send_wr *bad, wr = { .wr_id = wr_id, .opcode = IBV_WR_RDMA_WRITE,
					.send_flags = IBV_SEND_SIGNALED, .num_sge = 1 };
	wr.sg_list = &sge;
	wr.wr.rdma.remote_addr = (uintptr_t)memory + 1024;
	wr.wr.rdma.rkey = mr->rkey;
	LAW(ibv_post_send(left, &wr, &bad) == 0);
}

static void take_event(struct ibv_cq *expected)
{
	struct ibv_cq *whose;
	void *own;
	LAW(ibv_get_cq_event(channel, &whose, &own) == 0 && whose == expected);
	ibv_ack_cq_events(whose, 1);
}

/* How often a thread has waited. */
static long waits_of(const char *thread)
{
	char path[300], line[200];
	long count = -1;
	snprintf(path, sizeof(path), "/proc/self/task/%s/status", thread);
	FILE *file = fopen(path, "r");
	LAW(file);
	while (fgets(line, sizeof(line), file))
		sscanf(line, "voluntary_ctxt_switches: %ld", &count);
	fclose(file);
	LAW(count >= 0);
	return count;
}

/* How often all threads have waited but this one and `beside`. */
static long waits_of_others(long beside)
{
	long sum = 0;
	DIR *threads = opendir("/proc/self/task");
	LAW(threads);
	for (struct dirent *entry; (entry = readdir(threads));) {
		long id = strtol(entry->d_name, NULL, 10);
		if (id > 0 && id != getpid() && id != beside)
			sum += waits_of(entry->d_name);
	}
	closedir(threads);
	return sum;
}

static atomic_long waiter, heard;

static void *hear_all(void *unused)
{
	struct ibv_wc wc;
	waiter = syscall(SYS_gettid);
	while (heard < ROUNDS) {
		LAW(ibv_req_notify_cq(cq, 0) == 0);
		int count = ibv_poll_cq(cq, 1, &wc);
		LAW(count >= 0);
		heard += count;
		if (count == 0)
			take_event(cq);
	}
	return unused;
}

/* A completion wakes the thread that waits for it, and no other one: of a node inside the program
   threads of the node work for it, of a service none does. */
static void wake_ups(void)
{
	pthread_t thread;
	char name[32];
	if (!getenv("TRUNKLINE_SOCKET"))
		return;
	LAW(pthread_create(&thread, NULL, hear_all, NULL) == 0);
	/* It has found nothing, and sleeps. */
	usleep(50000);
	snprintf(name, sizeof(name), "%ld", (long)waiter);
	long before = waits_of(name), others_before = waits_of_others(waiter), woken = 0;
	for (int n = 0; n < ROUNDS; n++) {
		write_one(100 + n);
		for (int ms = 0; ms < PATIENCE_MS && heard <= n; ms++)
			usleep(1000);
		LAW(heard == n + 1);
		/* The last one ends it. */
		if (n == ROUNDS - 2) {
			usleep(10000);
			woken = waits_of(name) - before;
		}
	}
	LAW(pthread_join(thread, NULL) == 0);
	long others = waits_of_others(waiter) - others_before;
	if (woken > ROUNDS + 2 || others > 2)
		fprintf(stderr, "waited %ld times, others %ld, in %d rounds\n", woken, others,
			ROUNDS);
	LAW(woken <= ROUNDS + 2 && others <= 2);
}

static void *ack_later(void *event_cq)
{
	usleep(100000);
	memory[0] = 1;
	ibv_ack_cq_events(event_cq, 2);
	return NULL;
}

/* Many CQs on one channel, which the program watches by an epoll instance of its own. */
static void many_cqs(void)
{
	struct ibv_cq *many[MANY];
	struct epoll_event event = { .events = EPOLLIN };
	int own = epoll_create1(0);
	LAW(own >= 0 && epoll_ctl(own, EPOLL_CTL_ADD, channel->fd, &event) == 0);
	for (int n = 0; n < MANY; n++) {
		many[n] = ibv_create_cq(context, 4, &many[n], channel, 0);
		LAW(many[n]);
	}
	LAW(epoll_wait(own, &event, 1, 0) == 0);
	LAW(ibv_req_notify_cq(cq, 0) == 0);
	write_one(20);
	LAW(epoll_wait(own, &event, 1, PATIENCE_MS) == 1);
	take_event(cq);
	LAW(epoll_wait(own, &event, 1, 0) == 0 && completion().wr_id == 20);
	for (int n = 0; n < MANY; n++)
		LAW(ibv_destroy_cq(many[n]) == 0);
	close(own);
}

/* What a thread is told of may be a CQ that another one has destroyed meanwhile, which has no name
   any more: it goes on to the next. */
static void events_of_nobody(void)
{
	struct epoll_event nobody = { .events = EPOLLIN | EPOLLET, .data.u64 = UINT64_MAX };
	int own = eventfd(0, EFD_CLOEXEC);
	LAW(own >= 0 && epoll_ctl(channel->fd, EPOLL_CTL_ADD, own, &nobody) == 0);
	LAW(ibv_req_notify_cq(cq, 0) == 0);
	LAW(eventfd_write(own, 1) == 0 && is_readable(channel->fd, 0));
	write_one(22);
	take_event(cq);
	LAW(completion().wr_id == 22 && close(own) == 0);
}

/* What a program has of descriptors is closed when it becomes another one. */
static void no_descriptor_is_inherited(void)
{
	LAW(fcntl(channel->fd, F_GETFD) == FD_CLOEXEC);
	LAW(fcntl(context->async_fd, F_GETFD) == FD_CLOEXEC);
}

/* A QP of its own writes to itself, and completes on `own`. */
static void complete_on(struct ibv_cq *own, struct ibv_qp *qp)
{
	struct ibv_send_wr *bad, wr = { .opcode = IBV_WR_RDMA_WRITE,
					.send_flags = IBV_SEND_SIGNALED };
	wr.wr.rdma.remote_addr = (uintptr_t)memory;
	wr.wr.rdma.rkey = mr->rkey;
	LAW(ibv_req_notify_cq(own, 0) == 0);
	LAW(ibv_post_send(qp, &wr, &bad) == 0);
}

/* Events of a CQ that is destroyed: those that were not told are dropped, and those that were are
   waited for. */
static void destruction(void)
{
	struct ibv_cq *own = ibv_create_cq(context, 8, NULL, channel, 0), *whose;
	struct ibv_wc wc;
	void *cq_context;
	pthread_t thread;
	LAW(own);
	struct ibv_qp *qp = make_qp(own);
	connect_to(qp, qp);
	for (int n = 0; n < 2; n++) {
		complete_on(own, qp);
		LAW(ibv_get_cq_event(channel, &whose, &cq_context) == 0 && whose == own);
		LAW(ibv_poll_cq(own, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	}
	complete_on(own, qp);
	LAW(is_readable(channel->fd, PATIENCE_MS));
	LAW(ibv_destroy_qp(qp) == 0);
	memory[0] = 0;
	LAW(pthread_create(&thread, NULL, ack_later, own) == 0);
	LAW(ibv_destroy_cq(own) == 0 && memory[0] == 1);
	LAW(pthread_join(thread, NULL) == 0);
	LAW(!is_readable(channel->fd, 0));
}

/* A child takes no events of its parent, nor does what it has keep them. */
static void children_of_channels(void)
{
	int status;
	struct ibv_cq *whose;
	void *own;
	LAW(ibv_req_notify_cq(cq, 0) == 0);
	write_one(21);
	LAW(is_readable(channel->fd, PATIENCE_MS));
	pid_t child = fork();
	if (child == 0) {
		LAW(ibv_get_cq_event(channel, &whose, &own) == -1 && errno == EPERM);
		exit(0);
	}
	LAW(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	take_event(cq);
	LAW(completion().wr_id == 21);
}

void channels(void)
{
	wake_ups();
	no_descriptor_is_inherited();
	many_cqs();
	events_of_nobody();
	destruction();
	children_of_channels();
}

static void *hear_end(void *unused)
{
	struct ibv_cq *whose;
	struct ibv_wc wc;
	void *own;
	LAW(ibv_get_cq_event(channel, &whose, &own) == 0 && whose == cq);
	LAW(ibv_poll_cq(cq, 1, &wc) == -1);
	ibv_ack_cq_events(cq, 1);
	return unused;
}

/* More threads wait than there are CQs, and all of them hear that the service ends. */
void end_of_the_service(void)
{
	pthread_t threads[WAITING];
	for (int n = 0; n < WAITING; n++)
		LAW(pthread_create(&threads[n], NULL, hear_end, NULL) == 0);
	usleep(50000);
	puts("waiting");
	fflush(stdout);
	for (int n = 0; n < WAITING; n++)
		LAW(pthread_join(threads[n], NULL) == 0);
	/* Who comes later does not wait, either. */
	hear_end(NULL);
	/* Nobody serves there any more: the node that is down is not handed out again. */
	LAW(!ibv_open_device(context->device));
}
